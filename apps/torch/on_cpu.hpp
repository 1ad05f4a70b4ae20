// SPDX-License-Identifier: MIT
// What the C functions of kernels/include/oscar compute, for arguments whose pointers are host memory: the operators of
// CPU tensors, by kernels/reference. Rows may have any dimension that is a multiple of 8, and pages any size. Errors:
// RuntimeError.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/reference/coded_page.hpp"
#include "kernels/window_step.hpp"
#include "oscar/coded_pack.h"
#include "oscar/rotate_rows.h"

namespace oscar::operators::on_cpu {

/// How the rows of a coded layer lie in its pages.
struct CodedLayer {
  std::array<std::vector<reference::CodedRows>, 2> sides;  // keys and values, of the KV heads
  std::int64_t token_bytes = 0;

  /// bits (heads, dim / 8), steps and sigmas (heads, dim) of both sides. Throws std::logic_error if they are no format.
  CodedLayer(int heads, int dim, const std::array<const std::uint8_t*, 2>& bits,
             const std::array<const float*, 2>& steps, const std::array<const float*, 2>& sigmas);

  [[nodiscard]] const reference::CodedRows& rows(int side, std::int64_t head) const {
    return sides[static_cast<std::size_t>(side)][static_cast<std::size_t>(head)];
  }
};

void coded_pack(const oscar_coded_pack_args& args, const CodedLayer& layer);
void coded_unpack(const oscar_coded_unpack_args& args, const CodedLayer& layer);
void coded_decode(const oscar_coded_decode_args& args, const CodedLayer& layer);

void rotate_rows(std::span<const oscar_row_product> products, int head_dim);
void step_windows(const WindowStepCall& call);

}  // namespace oscar::operators::on_cpu
