// SPDX-License-Identifier: MIT
// An INT2 cache with queries, on host and device, and its attention in fp64, with the codes unpacked by
// kernels/reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/reference/packing.hpp"
#include "unit/kernels_cuda/int2_pages.hpp"

namespace oscar::test {

struct DecodeShape {
  int q_heads = 8, kv_heads = 2, dim = 128, group = 128;
  oscar_dtype params = OSCAR_FLOAT32;
  int page_size = 16, window_page_size = 16;
  float peak = 1;  // of the queries: how far from uniform attention is
  std::vector<int> lengths{300}, windows{70};
  int split_batch = 0;
};

inline int decode(const oscar_int2_decode_args& args) {
  static auto* const function = plugin_function<decltype(oscar_int2_decode)>("oscar_int2_decode");
  const int status = function(&args, nullptr);
  check_cuda(cudaDeviceSynchronize());
  return status;
}
inline std::size_t workspace_for(const oscar_int2_decode_args& args) {
  return plugin_function<decltype(oscar_int2_decode_workspace)>("oscar_int2_decode_workspace")(&args);
}
inline std::string refusal() { return plugin_function<decltype(oscar_int2_error)>("oscar_int2_error")(); }

/// One side (keys or values) of a cache: codes, their parameters, the bfloat16 window.
struct Side {
  RowPool codes, params, window;
  Side(const DecodeShape& s, const Pages& history, const Pages& recent, std::mt19937& engine)
      : codes(history.total, s.kv_heads, s.page_size, s.dim / 4),
        params(history.total, s.kv_heads, s.page_size, s.dim / s.group * 2 * bytes_of(s.params)),
        window(recent.total, s.kv_heads, s.window_page_size, 2 * s.dim) {
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(0.1F, 1.3F);
    for (std::byte& byte : codes.host) byte = static_cast<std::byte>(engine());
    const int size = bytes_of(s.params);
    for (std::size_t i = 0; i < params.host.size(); i += 2 * static_cast<std::size_t>(size)) {
      store(uniform(engine), s.params, &params.host[i]);
      store(1.5F + 0.4F * normal(engine), s.params, &params.host[i + static_cast<std::size_t>(size)]);
    }
    for (std::size_t i = 0; i < window.host.size(); i += 2) store(normal(engine), OSCAR_BFLOAT16, &window.host[i]);
  }

  std::vector<double> packed_row(const DecodeShape& s, int page, int head, int slot) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(s.dim / 4)), unpacked(static_cast<std::size_t>(s.dim));
    std::memcpy(bytes.data(), codes.row(page, head, slot), bytes.size());
    reference::unpack_int2(bytes, unpacked);
    std::vector<double> row;
    for (int i = 0; i < s.dim; ++i) {
      const std::byte* pair = params.row(page, head, slot) + i / s.group * 2 * bytes_of(s.params);
      row.push_back((unpacked[static_cast<std::size_t>(i)] - double{load(s.params, pair + bytes_of(s.params))}) *
                    load(s.params, pair));
    }
    return row;
  }
  std::vector<double> window_row(const DecodeShape& s, int page, int head, int slot) {
    std::vector<double> row;
    for (int i = 0; i < s.dim; ++i) row.push_back(load(OSCAR_BFLOAT16, window.row(page, head, slot) + 2 * i));
    return row;
  }
};

/// A cache, its queries, and the outputs, on host and device.
class CheckedDecode {
 public:
  explicit CheckedDecode(const DecodeShape& shape, unsigned seed = 1)
      : s(shape),
        engine_(seed),
        history_(s.lengths, s.page_size, engine_),
        recent_(s.windows, s.window_page_size, engine_),
        keys_(s, history_, recent_, engine_),
        values_(s, history_, recent_, engine_),
        out(s.lengths.size() * static_cast<std::size_t>(s.q_heads * s.dim) * 4, 0xFF),
        lse(s.lengths.size() * static_cast<std::size_t>(s.q_heads) * 4, 0xFF) {
    std::normal_distribution<float> normal(0, s.peak);
    queries_.resize(s.lengths.size() * static_cast<std::size_t>(s.q_heads * s.dim) * 2);
    for (std::size_t i = 0; i < queries_.size(); i += 2) store(normal(engine_), OSCAR_BFLOAT16, &queries_[i]);
    fill_args();
    args.workspace_bytes = workspace_for(args);
    workspace_ = std::make_unique<DeviceBytes>(args.workspace_bytes);
    args.workspace = workspace_->get();
  }

  /// Runs, and says whether all outputs were written and nothing else was.
  bool run() {
    out.fill(0xFF), lse.fill(0xFF);
    if (decode(args) != 0) return false;
    const auto is_nan = [](float x) { return std::isnan(x); };
    const auto values = out.download_as<float>(), sums = lse.download_as<float>();
    return out.intact() && lse.intact() && workspace_->intact() && std::none_of(values.begin(), values.end(), is_nan) &&
           std::none_of(sums.begin(), sums.end(), is_nan);
  }

  /// See decode_errors().
  std::pair<double, double> errors() {
    const DecodeResult result{
        s.q_heads, s.kv_heads, s.dim, queries_, out.download_as<float>(), lse.download_as<float>()};
    return decode_errors(result, static_cast<int>(s.lengths.size()),
                         [this](bool keys, int b, int head) { return rows(keys ? keys_ : values_, b, head); });
  }

  DecodeShape s;

 private:
  void fill_args() {
    args.batch = static_cast<int>(s.lengths.size());
    args.num_q_heads = s.q_heads, args.num_kv_heads = s.kv_heads, args.head_dim = s.dim;
    args.group_size = s.group, args.param_dtype = s.params, args.split_batch = s.split_batch;
    args.softmax_scale = 1 / std::sqrt(static_cast<float>(s.dim));
    args.q = upload(queries_);
    args.k_codes = keys_.codes.at(hold(keys_.codes.host)), args.v_codes = values_.codes.at(hold(values_.codes.host));
    args.k_params = keys_.params.at(hold(keys_.params.host));
    args.v_params = values_.params.at(hold(values_.params.host));
    args.k_window = keys_.window.at(hold(keys_.window.host));
    args.v_window = values_.window.at(hold(values_.window.host));
    args.history = table(history_), args.window = table(recent_);
    args.out = reinterpret_cast<float*>(out.get()), args.lse = reinterpret_cast<float*>(lse.get());
  }
  oscar_page_table table(const Pages& pages) {
    return {reinterpret_cast<const std::int32_t*>(upload(bytes_of(pages.table))),
            reinterpret_cast<const std::int32_t*>(upload(bytes_of(pages.lengths))), pages.per_sequence, pages.page_size,
            *std::max_element(pages.lengths.begin(), pages.lengths.end())};
  }
  const DeviceBytes& hold(const std::vector<std::byte>& bytes) {
    return *inputs_.emplace_back(std::make_unique<DeviceBytes>(bytes));
  }
  const std::byte* upload(const std::vector<std::byte>& bytes) { return hold(bytes).get(); }

  /// Keys or values of a sequence's KV head: history, then window.
  std::vector<std::vector<double>> rows(Side& side, int b, int kv_head) {
    std::vector<std::vector<double>> all;
    for (int t = 0; t < s.lengths[static_cast<std::size_t>(b)]; ++t) {
      all.push_back(side.packed_row(s, history_.page(b, t), kv_head, t % s.page_size));
    }
    for (int t = 0; t < s.windows[static_cast<std::size_t>(b)]; ++t) {
      all.push_back(side.window_row(s, recent_.page(b, t), kv_head, t % s.window_page_size));
    }
    return all;
  }

  std::mt19937 engine_;
  Pages history_, recent_;
  Side keys_, values_;
  std::vector<std::byte> queries_;
  std::vector<std::unique_ptr<DeviceBytes>> inputs_;
  std::unique_ptr<DeviceBytes> workspace_;

 public:
  DeviceBytes out, lse;
  oscar_int2_decode_args args{};
};

}  // namespace oscar::test
