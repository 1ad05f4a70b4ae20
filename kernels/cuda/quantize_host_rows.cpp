// SPDX-License-Identifier: MIT
// quantize(): rows in host memory pass through the GPU's codec in chunks.
#include <algorithm>

#include "kernels/arguments.hpp"
#include "kernels/cuda/device_buffer.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/row_codec.hpp"
#include "kernels/reference/coded_row.hpp"

namespace oscar::cuda {

void quantize(const Context& context, std::span<const float> rows, int head_dim, const HistoryCodec& codec,
              Precision precision, std::span<float> decoded, QuantizedRows* out) {
  constexpr std::size_t kChunkRows = std::size_t{1} << 16;
  const bool coded = codec.coded != nullptr;
  OSCAR_CHECK(codec.head_clip_ratios.empty() && (!coded || codec.coded->size() == 1));
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t groups = coded ? 0 : dim / static_cast<std::size_t>(checked_group_size(codec, head_dim));
  const std::size_t row_bytes = coded ? reference::coded_row_bytes(codec.coded->front()) : dim;
  const std::size_t num_rows = rows.size() / dim;
  OSCAR_CHECK(num_rows * dim == rows.size() && decoded.size() == rows.size());
  const bool wants_codes = out != nullptr;
  if (wants_codes)
    *out = {std::vector<std::uint8_t>(num_rows * row_bytes), std::vector<float>(num_rows * groups),
            std::vector<float>(num_rows * groups)};
  for (std::size_t first = 0; first < num_rows; first += kChunkRows) {
    const std::size_t count = std::min(kChunkRows, num_rows - first);
    const DeviceBuffer<float> device_rows(context, rows.subspan(first * dim, count * dim));
    DeviceBuffer<float> device_decoded(context, count * dim);
    DeviceBuffer<std::uint8_t> codes(context, wants_codes ? count * row_bytes : 0);
    DeviceBuffer<GroupParams> params(context, wants_codes ? count * groups : 0);
    quantize_rows(context, dense_rows(device_rows.data(), static_cast<std::int64_t>(count), head_dim), {&codec, 1},
                  precision, {.decoded = device_decoded.data(), .codes = codes.data(), .params = params.data()});
    device_decoded.download(context, decoded.subspan(first * dim, count * dim));
    if (!wants_codes) continue;
    codes.download(context, std::span(out->codes).subspan(first * row_bytes, count * row_bytes));
    const std::vector<GroupParams> host = params.to_host(context);
    for (std::size_t i = 0; i < host.size(); ++i) {
      out->scale[first * groups + i] = host[i].scale;
      out->zero[first * groups + i] = host[i].zero;
    }
  }
}

}  // namespace oscar::cuda
