// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>

#include "base/threads.hpp"
#include "observe_state.hpp"

namespace oscar::operators {
namespace {

Tensor on_host(const Tensor& x) {
  const Tensor host = x.is_cpu() ? x : torch::stable::to(x, Device(DeviceType::CPU));
  return torch::stable::contiguous(host);
}

/// Tokens [first, second).
using Run = std::pair<std::int64_t, std::int64_t>;

Run run_of(const Tensor& cu_seqlens, std::int64_t tokens) {
  const Tensor host = on_host(cu_seqlens);
  const bool is_long = host.scalar_type() == ScalarType::Long;
  const auto at = [&](std::int64_t i) {
    const std::int64_t boundary =
        is_long ? host.const_data_ptr<std::int64_t>()[i] : host.const_data_ptr<std::int32_t>()[i];
    return std::clamp<std::int64_t>(boundary, 0, tokens);
  };
  const std::int64_t begin = at(0);
  return {begin, std::max(begin, at(host.size(0) - 1))};
}

/// The tokens that count, of batch * tokens.
std::vector<Run> runs_of(const Rows& rows) {
  const std::int64_t tokens = rows.batch() * rows.k.size(-3);
  if (rows.cu_seqlens) return {run_of(*rows.cu_seqlens, tokens)};
  if (!rows.mask) return {{0, tokens}};
  const Tensor mask = on_host(*rows.mask);
  const bool* const counts = mask.const_data_ptr<bool>();
  std::vector<Run> runs;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (!counts[t]) continue;
    if (runs.empty() || runs.back().second < t) runs.emplace_back(t, t);
    runs.back().second = t + 1;
  }
  return runs;
}

/// The tokens of the runs one after the other, in `space` unless they are one run.
HeadsView counted(const Tensor& host, DType dtype, const std::vector<Run>& runs, std::vector<std::byte>& space) {
  HeadsView all{static_cast<const std::byte*>(host.const_data_ptr()), dtype, 0, static_cast<int>(host.size(-2)),
                static_cast<int>(host.size(-1))};
  if (runs.size() == 1) return all.tokens(runs[0].first, runs[0].second);
  for (const auto& [begin, end] : runs) {
    space.insert(space.end(), all.data + begin * all.bytes_per_token(), all.data + end * all.bytes_per_token());
    all.num_tokens += end - begin;
  }
  all.data = space.data();
  return all;
}

}  // namespace

void Layer::add(const Rows& rows, std::int64_t seed) {
  if (gpu) return gpu->add(rows, seed);
  if (is_capturing(rows.k)) {
    fail("observe: a CUDA graph cannot hold rows that no kernel takes, ", rows.k.scalar_type(), " ", shape_of(rows.k),
         "; give bfloat16 or float16, of 16 to 256 channels in steps of 16");
  }
  set_num_threads(static_cast<int>(torch::stable::get_num_threads()));
  const std::vector<Run> runs = runs_of(rows);
  const std::array hosts{on_host(rows.q), on_host(rows.k), on_host(rows.v)};
  std::array<std::vector<std::byte>, 3> spaces;
  const auto view = [&](std::size_t i) { return counted(hosts[i], shape.dtype, runs, spaces[i]); };
  add_rows(*host, {view(0), view(1), view(2), rows.query_scale * rows.query_scale, rows.sequences()}, seed);
}

}  // namespace oscar::operators
