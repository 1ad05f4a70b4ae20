// SPDX-License-Identifier: MIT
// The row codec on rows that are on the GPU already; the equations stand in kernels/README.md.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_buffer.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

/// Where codes (rows, head_dim), scales and zeros (rows, groups) go; null pointers: nowhere.
struct DeviceCodes {
  std::uint8_t* codes = nullptr;
  float* scale = nullptr;
  float* zero = nullptr;
};

/// rows and decoded: (n, head_dim), or a whole number of such rows. Throws UsageError as checked_group_size() does.
void quantize_rows(const Context& context, const DeviceBuffer<float>& rows, int head_dim, const RowCodec& codec,
                   Precision precision, DeviceBuffer<float>& decoded, DeviceCodes out);

}  // namespace oscar::cuda
