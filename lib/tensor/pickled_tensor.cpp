// SPDX-License-Identifier: MIT
#include "tensor/pickled_tensor.hpp"

#include <cstring>

#include "base/errors.hpp"
#include "base/files.hpp"

namespace oscar {

bool PickledTensor::is_contiguous() const {
  if (num_elements(shape) == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

void require_inside(const PickledTensor& view, std::uint64_t record_bytes, const std::string& where) {
  bool inside = view.offset >= 0 && view.strides.size() == view.shape.size();
  std::int64_t end = view.offset;
  for (std::size_t i = 0; inside && i < view.shape.size(); ++i) {
    std::int64_t span = 0;
    inside = view.shape[i] >= 0 && view.strides[i] >= 0 &&
             !__builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &span) &&
             !__builtin_add_overflow(end, span, &end);
  }
  const auto capacity = static_cast<std::int64_t>(record_bytes / size_of(view.dtype));
  if (!inside || (num_elements(view.shape) > 0 && end >= capacity)) {
    throw DataError("a tensor is larger than its record in the archive", where,
                    "fetch or write the file again; only zip archives made by torch.save can be read");
  }
}

Tensor gather(const PickledTensor& view, std::span<const std::byte> record) {
  Tensor out(view.dtype, view.shape);
  if (out.data.empty()) return out;
  const std::size_t size = size_of(view.dtype);
  if (view.is_contiguous()) {
    std::memcpy(out.data.data(), record.data() + static_cast<std::size_t>(view.offset) * size, out.data.size());
    return out;
  }
  std::vector<std::int64_t> index(view.shape.size());
  std::int64_t from = view.offset;
  for (std::size_t to = 0; to < out.data.size(); to += size) {
    std::memcpy(out.data.data() + to, record.data() + static_cast<std::size_t>(from) * size, size);
    for (std::size_t i = index.size(); i-- > 0;) {  // the next index, as an odometer counts
      from += view.strides[i];
      if (++index[i] < view.shape[i]) break;
      from -= view.strides[i] * view.shape[i];
      index[i] = 0;
    }
  }
  return out;
}

}  // namespace oscar
