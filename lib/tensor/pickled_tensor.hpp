// SPDX-License-Identifier: MIT
// A tensor as a pickle tells it: a view of a record of the archive, checked before it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "tensor/tensor.hpp"

namespace oscar {

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

}  // namespace oscar
