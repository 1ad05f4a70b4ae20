// SPDX-License-Identifier: MIT
// A coded cache with queries, on host and device. Its rows are decoded bit by bit, as oscar/coded_attention.h defines
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "oscar/coded_attention.h"
#include "unit/kernels_cuda/int2_pages.hpp"

namespace oscar::test {

struct CodedCaseShape {
  int q_heads = 8, kv_heads = 2, dim = 128, page_size = 16;
  float peak = 1;  // of the queries: how far from uniform attention is
  std::vector<int> lengths{300}, windows{70};
  int split_batch = 0;
  int most_bits = 4;
  int query_tokens = 1;
  std::vector<std::uint8_t> key_plan, value_plan;  // bits of the blocks of every KV head; random ones if empty
};

inline int code_layout(const oscar_coded_format& format, oscar_coded_layout& layout, void* table) {
  return plugin_function<decltype(oscar_coded_layout_of)>("oscar_coded_layout_of")(&format, &layout, table);
}

/// Bits and steps of one side of a layer, and where the bits of a KV head's codes lie.
struct CodedSideFormat {
  std::vector<std::uint8_t> bits;  // (kv_heads, dim / 8)
  std::vector<float> steps;        // (kv_heads, dim)
  int blocks;

  CodedSideFormat(const CodedCaseShape& s, const std::vector<std::uint8_t>& plan, std::mt19937& engine)
      : blocks(s.dim / 8) {
    for (int head = 0; head < s.kv_heads; ++head) {
      bits.insert(bits.end(), plan.begin(), plan.end());
      if (!plan.empty()) continue;
      const auto count = static_cast<unsigned>(s.most_bits + 1);
      for (int i = 0; i < blocks; ++i) bits.push_back(static_cast<std::uint8_t>(engine() % count));
      std::sort(bits.end() - blocks, bits.end(), std::greater<>());
    }
    // As fits make them: about equal steps in a head, so that a channel of more bits has larger values.
    std::uniform_real_distribution<float> uniform(0.7F, 1.3F);
    for (std::size_t i = 0; i < 8 * bits.size(); ++i) {
      const int most = bits[i / 8 / static_cast<std::size_t>(blocks) * static_cast<std::size_t>(blocks)];
      steps.push_back(7.0F / static_cast<float>(1 << most) * uniform(engine));
    }
  }

  [[nodiscard]] const std::uint8_t* of(int head) const { return &bits[static_cast<std::size_t>(head * blocks)]; }
  [[nodiscard]] int string_bytes(int head) const {
    int sum = 0;
    for (int i = 0; i < blocks; ++i) sum += of(head)[i];
    return (sum + 7) / 8;
  }
  /// strings[j][byte]; `wide`, `narrow`: bytes of the scales.
  [[nodiscard]] std::vector<double> row(int head, const std::vector<std::vector<int>>& strings, int wide,
                                        int narrow) const {
    std::vector<int> used(strings[0].size());
    std::vector<double> out(static_cast<std::size_t>(8 * blocks));
    for (int block = 0; block < blocks; ++block) {
      const int width = of(head)[block];
      int codes[8] = {};
      for (int bit = 0, byte = 0, room = 0; bit < width; ++bit, --room) {
        if (room == 0) {
          byte = static_cast<int>(std::min_element(used.begin(), used.end()) - used.begin());
          room = 8 - used[static_cast<std::size_t>(byte)];
        }
        const int position = used[static_cast<std::size_t>(byte)]++;
        for (std::size_t j = 0; j < 8; ++j)
          codes[j] |= (strings[j][static_cast<std::size_t>(byte)] >> position & 1) << bit;
      }
      const double scale = std::exp2(((width >= 4 ? wide : narrow) - 128) / 16.0);
      for (int j = 0; j < 8 && width > 0; ++j) {
        const std::size_t i = static_cast<std::size_t>(8 * block + j);
        out[i] = (codes[j] - ((1 << width) - 1) / 2.0) * steps[static_cast<std::size_t>(head) * 8 * blocks + i] * scale;
      }
    }
    return out;
  }
};

/// A cache, its queries, and the outputs, on host and device.
class CheckedCodedDecode {
 public:
  explicit CheckedCodedDecode(const CodedCaseShape& shape, unsigned seed = 1)
      : s(shape),
        engine_(seed),
        sides_{CodedSideFormat(s, s.key_plan, engine_), CodedSideFormat(s, s.value_plan, engine_)},
        history_(s.lengths, s.page_size, engine_),
        recent_(s.windows, 16, engine_),
        windows_{RowPool(recent_.total, s.kv_heads, 16, 2 * s.dim), RowPool(recent_.total, s.kv_heads, 16, 2 * s.dim)},
        out(queries() * static_cast<std::size_t>(s.q_heads * s.dim) * 4, 0xFF),
        lse(queries() * static_cast<std::size_t>(s.q_heads) * 4, 0xFF) {
    const oscar_coded_format format{s.dim,
                                    s.kv_heads,
                                    sides_[0].bits.data(),
                                    sides_[1].bits.data(),
                                    sides_[0].steps.data(),
                                    sides_[1].steps.data()};
    check_cuda(code_layout(format, args.layout, nullptr));
    std::vector<std::byte> table(static_cast<std::size_t>(args.layout.table_bytes));
    check_cuda(code_layout(format, args.layout, table.data()));
    args.layout.table = upload(table);
    fill_pages();
    fill_args();
    args.workspace_bytes = plugin_function<decltype(oscar_coded_decode_tokens_workspace)>(
        "oscar_coded_decode_tokens_workspace")(&args, s.query_tokens);
    workspace_ = std::make_unique<DeviceBytes>(args.workspace_bytes);
    args.workspace = workspace_->get();
  }

  /// Runs, and says whether all outputs were written and nothing else was. One query token goes through the function of
  /// one, whose workspace is the same.
  bool run() {
    out.fill(0xFF), lse.fill(0xFF);
    const int status = s.query_tokens == 1
                           ? plugin_function<decltype(oscar_coded_decode)>("oscar_coded_decode")(&args, nullptr)
                           : plugin_function<decltype(oscar_coded_decode_tokens)>("oscar_coded_decode_tokens")(
                                 &args, s.query_tokens, nullptr);
    if (status != 0) return false;
    check_cuda(cudaDeviceSynchronize());
    const auto is_nan = [](float x) { return std::isnan(x); };
    const auto values = out.download_as<float>(), sums = lse.download_as<float>();
    return out.intact() && lse.intact() && workspace_->intact() && std::none_of(values.begin(), values.end(), is_nan) &&
           std::none_of(sums.begin(), sums.end(), is_nan);
  }

  /// See decode_errors(); each query token counts as a sequence, which lacks the tokens after it.
  std::pair<double, double> errors() {
    const DecodeResult result{
        s.q_heads, s.kv_heads, s.dim, queries_, out.download_as<float>(), lse.download_as<float>()};
    return decode_errors(result, static_cast<int>(queries()), [this](bool keys, int query, int head) {
      const int b = query / s.query_tokens, after = s.query_tokens - 1 - query % s.query_tokens;
      DecodedRows seen = rows(keys ? 0 : 1, b, head);
      seen.resize(seen.size() - static_cast<std::size_t>(std::min(after, s.windows[static_cast<std::size_t>(b)])));
      return seen;
    });
  }

  CodedCaseShape s;

 private:
  /// Random codes, and scales near 1.
  void fill_pages() {
    pages_.resize(static_cast<std::size_t>(history_.total) * s.page_size * args.layout.token_bytes);
    for (std::byte& byte : pages_) byte = static_cast<std::byte>(engine());
    for (int page = 0; page < history_.total; ++page) {
      for (int head = 0; head < s.kv_heads; ++head) {
        std::byte* const scales = data(page, head) + s.page_size * (head_bytes(head) - 4);
        for (int i = 0; i < 4 * s.page_size; ++i) scales[i] = static_cast<std::byte>(112 + engine() % 28);
      }
    }
    std::normal_distribution<float> normal;
    for (RowPool& pool : windows_) {
      for (std::size_t i = 0; i < pool.host.size(); i += 2) store(normal(engine_), OSCAR_BFLOAT16, &pool.host[i]);
    }
    std::normal_distribution<float> of_queries(0, s.peak);
    queries_.resize(queries() * static_cast<std::size_t>(s.q_heads * s.dim) * 2);
    for (std::size_t i = 0; i < queries_.size(); i += 2) store(of_queries(engine_), OSCAR_BFLOAT16, &queries_[i]);
  }
  /// Query tokens of all sequences.
  [[nodiscard]] std::size_t queries() const { return s.lengths.size() * static_cast<std::size_t>(s.query_tokens); }
  unsigned engine() { return static_cast<unsigned>(engine_()); }
  void fill_args() {
    args.batch = static_cast<int>(s.lengths.size());
    args.num_q_heads = s.q_heads, args.split_batch = s.split_batch;
    args.softmax_scale = 1 / std::sqrt(static_cast<float>(s.dim));
    args.q = upload(queries_), args.pages = upload(pages_);
    args.page_stride = s.page_size * args.layout.token_bytes;
    args.k_window = windows_[0].at(hold(windows_[0].host)), args.v_window = windows_[1].at(hold(windows_[1].host));
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

  [[nodiscard]] int head_bytes(int head) const {
    return 8 * (sides_[0].string_bytes(head) + sides_[1].string_bytes(head)) + 4;
  }
  std::byte* data(int page, int head) {
    std::int64_t at = page * s.page_size * args.layout.token_bytes;
    for (int i = 0; i < head; ++i) at += std::int64_t{s.page_size} * head_bytes(i);
    return &pages_[static_cast<std::size_t>(at)];
  }

  std::vector<double> packed_row(int side, int page, int head, int slot) {
    const int count[2] = {sides_[0].string_bytes(head), sides_[1].string_bytes(head)};
    const auto byte_at = [&](std::int64_t at) { return static_cast<int>(data(page, head)[at]); };
    const std::int64_t full = 16LL * s.page_size, half = full / 2;
    const std::int64_t first_full = side == 0 ? 0 : count[0] / 2, halves = count[0] / 2 + count[1] / 2;
    std::vector<std::vector<int>> strings(8);
    for (int j = 0; j < 8; ++j) {
      if (count[side] % 2 == 1) {
        strings[static_cast<std::size_t>(j)].push_back(
            byte_at(halves * full + (side == 0 ? 0 : count[0] % 2) * half + slot * 8 + j));
      }
      for (int byte = 0; byte < count[side] / 2 * 2; ++byte) {
        strings[static_cast<std::size_t>(j)].push_back(
            byte_at((first_full + byte / 2) * full + slot * 16 + 2 * j + byte % 2));
      }
    }
    const std::int64_t scales = s.page_size * std::int64_t{head_bytes(head) - 4} + slot * 4 + 2 * side;
    return sides_[side].row(head, strings, byte_at(scales), byte_at(scales + 1));
  }

  /// Keys (0) or values (1) of a sequence's KV head: history, then window.
  DecodedRows rows(int side, int b, int head) {
    DecodedRows all;
    for (int t = 0; t < s.lengths[static_cast<std::size_t>(b)]; ++t) {
      all.push_back(packed_row(side, history_.page(b, t), head, t % s.page_size));
    }
    for (int t = 0; t < s.windows[static_cast<std::size_t>(b)]; ++t) {
      auto& row = all.emplace_back();
      for (int i = 0; i < s.dim; ++i) {
        row.push_back(load(OSCAR_BFLOAT16, windows_[side].row(recent_.page(b, t), head, t % 16) + 2 * i));
      }
    }
    return all;
  }

  std::mt19937 engine_;
  CodedSideFormat sides_[2];
  Pages history_, recent_;
  RowPool windows_[2];
  std::vector<std::byte> queries_, pages_;
  std::vector<std::unique_ptr<DeviceBytes>> inputs_;
  std::unique_ptr<DeviceBytes> workspace_;

 public:
  DeviceBytes out, lse;
  oscar_coded_decode_args args{};
};

}  // namespace oscar::test
