// SPDX-License-Identifier: MIT
// Identifiers and element types of the HDF5 library. Only for hdf5_*.cpp.
#pragma once

#include <hdf5.h>

#include <array>
#include <utility>

#include "tensor/dtype.hpp"

namespace oscar {

/// An HDF5 identifier that closes itself. Negative identifiers are failures; the holder of a failure closes nothing.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&&) = delete;
  void reset() {
    if (id_ >= 0) close_(std::exchange(id_, -1));
  }
  [[nodiscard]] hid_t get() const { return id_; }
  [[nodiscard]] bool ok() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// Silences the library; called before anything else of it. A file that could not be written would take the process
/// down at its end, where the library tries to write it again.
inline void silence_library() {
  H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

/// Makes a little-endian 16-bit float with these widths of exponent and mantissa, as HDF5 describes such types.
inline hid_t make_half(std::size_t exponent, std::size_t mantissa) {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  H5Tset_fields(type, 15, mantissa, exponent, 0, mantissa);
  H5Tset_size(type, 2);
  H5Tset_ebias(type, (std::size_t{1} << (exponent - 1)) - 1);
  return type;
}

inline hid_t native_type(DType dtype) {
  static const hid_t kFloat16 = make_half(5, 10), kBfloat16 = make_half(8, 7);
  switch (dtype) {
    case DType::kF16:
      return kFloat16;
    case DType::kBF16:
      return kBfloat16;
    case DType::kF64:
      return H5T_NATIVE_DOUBLE;
    case DType::kF32:
      return H5T_NATIVE_FLOAT;
    case DType::kI64:
      return H5T_NATIVE_INT64;
    case DType::kI32:
      return H5T_NATIVE_INT32;
    case DType::kU8:
      return H5T_NATIVE_UINT8;
    default:
      return -1;
  }
}

inline constexpr std::array kStorable{DType::kF64, DType::kF32, DType::kF16, DType::kBF16,
                                      DType::kI64, DType::kI32, DType::kU8};

}  // namespace oscar
