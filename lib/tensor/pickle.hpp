// SPDX-License-Identifier: MIT
// The pickles that torch.save writes (protocol 2): dicts, lists, tuples, numbers, strings, None and tensors. A stack
// machine builds these and knows nothing else: nothing is executed, any other global is refused by its name, and bytes
// that no torch.save wrote end in an error, never in more memory than the file accounts for. (libtorch has one too,
// which trusts the bytes: some make it read beyond its stack, or end the process.) What is written says the same in the
// opcodes that torch.save has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/pt.hpp"

namespace oscar {

/// The names that pickles of torch.save have for the types of elements.
inline constexpr std::array<std::pair<std::string_view, DType>, 10> kStorages{{{"DoubleStorage", DType::kF64},
                                                                               {"FloatStorage", DType::kF32},
                                                                               {"HalfStorage", DType::kF16},
                                                                               {"BFloat16Storage", DType::kBF16},
                                                                               {"LongStorage", DType::kI64},
                                                                               {"IntStorage", DType::kI32},
                                                                               {"ShortStorage", DType::kI16},
                                                                               {"CharStorage", DType::kI8},
                                                                               {"ByteStorage", DType::kU8},
                                                                               {"BoolStorage", DType::kBool}}};

/// A tensor as a pickle tells it: a view of a record of the archive, checked before it is read.
struct PickledTensor {
  DType dtype = DType::kF32;
  std::string record;
  std::int64_t offset = 0;                     // in elements
  std::vector<std::int64_t> shape, strides{};  // as many strides as sizes, in elements

  [[nodiscard]] bool is_contiguous() const;
};

/// Throws DataError unless all elements lie inside a record of so many bytes. where: the file.
void require_inside(const PickledTensor& view, std::uint64_t record_bytes, const std::string& where);

/// The elements of a view that lies inside `record`, without gaps.
[[nodiscard]] Tensor gather(const PickledTensor& view, std::span<const std::byte> record);

/// The value of a pickle; `make` is called for every tensor in it. where: the file. Throws DataError, as `make` may.
[[nodiscard]] PtValue read_pickle(std::span<const char> pickle,
                                  const std::function<PtValue(const PickledTensor&)>& make, const std::string& where);

/// The pickle of a value. Its tensors come into `tensors`; the elements of the i-th are the record "i".
[[nodiscard]] std::string write_pickle(const PtValue& value, std::vector<const Tensor*>& tensors);

}  // namespace oscar
