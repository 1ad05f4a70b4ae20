// SPDX-License-Identifier: MIT
// A cache with queries, INT2 or coded, on host and device, and its attention in fp64. Rows are read by
// kernels/reference.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/reference/coded_page.hpp"
#include "kernels/reference/packing.hpp"
#include "oscar/coded_attention.h"
#include "unit/kernels_cuda/gpu.hpp"
#include "unit/kernels_cuda/int2_pages.hpp"

namespace oscar::test {

struct DecodeShape {
  int q_heads = 8, kv_heads = 2, dim = 128;
  int group = 128;                     // INT2
  oscar_dtype params = OSCAR_FLOAT32;  // INT2
  int page_size = 16, window_page_size = 16;
  float peak = 1;  // of the queries: how far from uniform attention is
  std::vector<int> lengths{300}, windows{70};
  int split_batch = 0;
  int most_bits = 4, query_tokens = 1;             // coded
  std::vector<std::uint8_t> key_plan, value_plan;  // coded: bits of the blocks of every KV head; random ones if empty
};

inline std::string refusal() { return plugin_function<decltype(oscar_last_error)>("oscar_last_error")(); }

/// What both kinds of caches have: a history in pages, windows of bfloat16 rows, queries, and outputs.
template <class Args>
class DecodeCase {
 public:
  virtual ~DecodeCase() = default;

  /// The kernel's status.
  [[nodiscard]] virtual int launch() = 0;

  /// Runs, and says whether all outputs were written and nothing else was.
  bool run() {
    out.fill(0xFF), lse.fill(0xFF);
    const int status = launch();
    check_cuda(cudaDeviceSynchronize());
    if (status != 0) return false;
    const auto is_number = [](float x) { return !std::isnan(x); };
    return out.intact() && lse.intact() && workspace_->intact() &&
           std::ranges::all_of(out.template download_as<float>(), is_number) &&
           std::ranges::all_of(lse.template download_as<float>(), is_number);
  }

  /// |out - expected| / |expected| and |lse - expected| / max(1, |expected|), the largest of the query tokens. Each of
  /// these counts as a sequence, which lacks the tokens after it.
  std::pair<double, double> errors() {
    std::pair<double, double> worst;
    const auto values = out.template download_as<float>(), sums = lse.template download_as<float>();
    const auto dim = static_cast<std::size_t>(s.dim);
    for (std::size_t query = 0; query < queries(); ++query) {
      double error = 0, norm = 0;
      for (int h = 0; h < s.q_heads; ++h) {
        const int kv_head = h / (s.q_heads / s.kv_heads);
        const std::size_t row = query * static_cast<std::size_t>(s.q_heads) + static_cast<std::size_t>(h);
        std::vector<double> expected(dim);
        const double sum = attend_once(row, rows(0, query, kv_head), rows(1, query, kv_head), expected);
        const double got = sums[row];
        worst.second = std::max(worst.second, sum == got ? 0 : std::abs(sum - got) / std::max(1.0, std::abs(sum)));
        for (std::size_t i = 0; i < dim; ++i) {
          const double difference = values[row * dim + i] - expected[i];
          error += difference * difference, norm += expected[i] * expected[i];
        }
      }
      worst.first = std::max(worst.first, error == 0 ? 0 : std::sqrt(error / norm));
    }
    return worst;
  }

  DecodeShape s;
  Args args{};

 protected:
  using Rows = std::vector<std::vector<double>>;  // (tokens, dim)

  DecodeCase(const DecodeShape& shape, unsigned seed)
      : s(shape),
        engine_(seed),
        history_(s.lengths, s.page_size, engine_),
        recent_(s.windows, s.window_page_size, engine_),
        windows_(2, RowPool(recent_.total, s.kv_heads, s.window_page_size, 2 * s.dim)),
        out(queries() * static_cast<std::size_t>(s.q_heads * s.dim) * 4, 0xFF),
        lse(queries() * static_cast<std::size_t>(s.q_heads) * 4, 0xFF) {
    for (RowPool& pool : windows_) fill_normal(pool.host, 1);
    queries_.resize(queries() * static_cast<std::size_t>(s.q_heads * s.dim) * 2);
    fill_normal(queries_, s.peak);
    args.batch = static_cast<int>(s.lengths.size());
    args.num_q_heads = s.q_heads, args.split_batch = s.split_batch;
    args.softmax_scale = 1 / std::sqrt(static_cast<float>(s.dim));
    args.q = upload(queries_);
    args.k_window = upload(windows_[0]), args.v_window = upload(windows_[1]);
    args.history = table(history_), args.window = table(recent_);
    args.out = reinterpret_cast<float*>(out.get()), args.lse = reinterpret_cast<float*>(lse.get());
  }

  /// A row of the history of the keys (0) or values (1).
  virtual std::vector<double> packed_row(int side, int page, int head, int slot) = 0;

  void make_workspace(std::size_t bytes) {
    workspace_ = std::make_unique<DeviceBytes>(bytes);
    args.workspace = workspace_->get(), args.workspace_bytes = bytes;
  }
  const std::byte* upload(const std::vector<std::byte>& bytes) {
    return inputs_.emplace_back(std::make_unique<DeviceBytes>(bytes))->get();
  }
  oscar_paged_rows upload(const RowPool& pool) {
    return pool.at(*inputs_.emplace_back(std::make_unique<DeviceBytes>(pool.host)));
  }

 private:
  /// Query tokens of all sequences.
  [[nodiscard]] std::size_t queries() const { return s.lengths.size() * static_cast<std::size_t>(s.query_tokens); }
  void fill_normal(std::vector<std::byte>& bf16, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    for (std::size_t i = 0; i < bf16.size(); i += 2) store(normal(engine_), OSCAR_BFLOAT16, &bf16[i]);
  }
  oscar_page_table table(const Pages& pages) {
    return {reinterpret_cast<const std::int32_t*>(upload(bytes_of(pages.table))),
            reinterpret_cast<const std::int32_t*>(upload(bytes_of(pages.lengths))), pages.per_sequence, pages.page_size,
            std::ranges::max(pages.lengths)};
  }

  /// Keys (0) or values (1) that a query token sees of a KV head: history, then window.
  Rows rows(int side, std::size_t query, int head) {
    const auto tokens = static_cast<std::size_t>(s.query_tokens);
    const int b = static_cast<int>(query / tokens), after = static_cast<int>(tokens - 1 - query % tokens);
    Rows all;
    for (int t = 0; t < history_.lengths[static_cast<std::size_t>(b)]; ++t) {
      all.push_back(packed_row(side, history_.page(b, t), head, t % s.page_size));
    }
    for (int t = 0; t < recent_.lengths[static_cast<std::size_t>(b)] - after; ++t) {
      const std::byte* const from =
          windows_[static_cast<std::size_t>(side)].row(recent_.page(b, t), head, t % s.window_page_size);
      auto& row = all.emplace_back();
      for (int i = 0; i < s.dim; ++i) row.push_back(load(OSCAR_BFLOAT16, from + 2 * i));
    }
    return all;
  }

  /// One query head, row `row` of all; writes its output and returns the log of the sum of exponentials.
  double attend_once(std::size_t row, const Rows& keys, const Rows& values, std::vector<double>& expected) const {
    std::vector<double> scores;
    double top = -INFINITY, sum = 0;
    for (const auto& key : keys) {
      double score = 0;
      for (std::size_t i = 0; i < key.size(); ++i) {
        score += key[i] * load(OSCAR_BFLOAT16, &queries_[2 * (row * key.size() + i)]);
      }
      scores.push_back(score / std::sqrt(static_cast<double>(s.dim)));
      top = std::max(top, scores.back());
    }
    for (const double score : scores) sum += std::exp(score - top);
    for (std::size_t j = 0; j < values.size(); ++j) {
      const double weight = std::exp(scores[j] - top) / sum;
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += weight * values[j][i];
    }
    return sum > 0 ? top + std::log(sum) : -INFINITY;
  }

 protected:
  std::mt19937 engine_;
  Pages history_, recent_;

 private:
  std::vector<RowPool> windows_;  // keys, values
  std::vector<std::byte> queries_;
  std::vector<std::unique_ptr<DeviceBytes>> inputs_;
  std::unique_ptr<DeviceBytes> workspace_;

 public:
  DeviceBytes out, lse;
};

/// Two runs of Case: errors within bounds, and the same bits. `name` is printed with the measurements.
template <class Case>
void check_decode(const std::string& name, DecodeShape s, unsigned seed, double most_lse_error) {
  s.split_batch = seed % 2 == 0 ? 0 : 300;  // cut finely, by few sequences, and coarsely
  Case test(s, seed);
  CHECK(test.run());
  const auto [error, lse_error] = test.errors();
  const Shape shape{Case::dtype_of(s), s.dim, s.lengths.back()};
  check_error(name + ", relative", shape, error, 2e-3);
  check_error(name + ", log-sum-exp", shape, lse_error, most_lse_error);
  const auto first = test.out.download();
  CHECK(test.run());
  CHECK_MESSAGE(test.out.download() == first, "another run gives other bits");
}

/// An INT2 cache.
class Int2DecodeCase : public DecodeCase<oscar_int2_decode_args> {
 public:
  explicit Int2DecodeCase(const DecodeShape& shape, unsigned seed = 1)
      : DecodeCase(shape, seed),
        codes_(2, RowPool(history_.total, s.kv_heads, s.page_size, s.dim / 4)),
        params_(2, RowPool(history_.total, s.kv_heads, s.page_size, s.dim / s.group * 2 * bytes_of(s.params))) {
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(0.1F, 1.3F);
    const auto size = static_cast<std::size_t>(bytes_of(s.params));
    for (std::size_t side = 0; side < 2; ++side) {
      for (std::byte& byte : codes_[side].host) byte = static_cast<std::byte>(engine_());
      std::vector<std::byte>& params = params_[side].host;
      for (std::size_t i = 0; i < params.size(); i += 2 * size) {
        store(uniform(engine_), s.params, &params[i]);
        store(1.5F + 0.4F * normal(engine_), s.params, &params[i + size]);
      }
    }
    args.num_kv_heads = s.kv_heads, args.head_dim = s.dim, args.group_size = s.group, args.param_dtype = s.params;
    args.k_codes = upload(codes_[0]), args.v_codes = upload(codes_[1]);
    args.k_params = upload(params_[0]), args.v_params = upload(params_[1]);
    make_workspace(plugin_function<decltype(oscar_int2_decode_workspace)>("oscar_int2_decode_workspace")(&args));
  }

  [[nodiscard]] static int decode(const oscar_int2_decode_args& args) {
    const int status = plugin_function<decltype(oscar_int2_decode)>("oscar_int2_decode")(&args, nullptr);
    check_cuda(cudaDeviceSynchronize());
    return status;
  }
  [[nodiscard]] int launch() override { return decode(args); }
  [[nodiscard]] static DType dtype_of(const DecodeShape& s) {
    return s.params == OSCAR_FLOAT32 ? DType::kF32 : s.params == OSCAR_FLOAT16 ? DType::kF16 : DType::kBF16;
  }

 private:
  std::vector<double> packed_row(int side, int page, int head, int slot) override {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(s.dim / 4)), unpacked(static_cast<std::size_t>(s.dim));
    std::memcpy(bytes.data(), codes_[static_cast<std::size_t>(side)].row(page, head, slot), bytes.size());
    reference::unpack_int2(bytes, unpacked);
    const std::byte* const params = params_[static_cast<std::size_t>(side)].row(page, head, slot);
    std::vector<double> row;
    for (int i = 0; i < s.dim; ++i) {
      const std::byte* const pair = params + i / s.group * 2 * bytes_of(s.params);
      row.push_back((unpacked[static_cast<std::size_t>(i)] - double{load(s.params, pair + bytes_of(s.params))}) *
                    load(s.params, pair));
    }
    return row;
  }

  std::vector<RowPool> codes_, params_;  // keys, values
};

inline int code_layout(const oscar_coded_format& format, oscar_coded_layout& layout, void* table) {
  return plugin_function<decltype(oscar_coded_layout_of)>("oscar_coded_layout_of")(&format, &layout, table);
}

/// Bits and steps of one side of a layer.
struct CodedSideFormat {
  std::vector<std::uint8_t> bits;  // (kv_heads, dim / 8)
  std::vector<float> steps;        // (kv_heads, dim)
  int blocks;

  CodedSideFormat(const DecodeShape& s, const std::vector<std::uint8_t>& plan, std::mt19937& engine)
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

  [[nodiscard]] std::span<const std::uint8_t> of(int head) const {
    return std::span(bits).subspan(static_cast<std::size_t>(head * blocks), static_cast<std::size_t>(blocks));
  }
  [[nodiscard]] CodedFormat format(int head) const {
    CodedFormat own;
    for (const std::uint8_t width : of(head)) own.levels.insert(own.levels.end(), 8, 1 << width);
    own.step.assign(steps.begin() + head * 8 * blocks, steps.begin() + (head + 1) * 8 * blocks);
    own.sigma.assign(own.step.size(), 1.0F);
    return own;
  }
};

/// A coded cache.
class CodedDecodeCase : public DecodeCase<oscar_coded_decode_args> {
 public:
  explicit CodedDecodeCase(const DecodeShape& shape, unsigned seed = 1)
      : DecodeCase(shape, seed), formats_(seed), sides_{{s, s.key_plan, formats_}, {s, s.value_plan, formats_}} {
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
    std::int64_t bytes = 0;
    for (int head = 0; head < s.kv_heads; ++head) {
      const int keys = reference::bytes_of_string(sides_[0].of(head));
      const int values = reference::bytes_of_string(sides_[1].of(head));
      const auto planes = reference::planes_of_head(bytes, keys, values);
      for (std::size_t side = 0; side < 2; ++side) rows_[side].emplace_back(sides_[side].format(head), planes[side]);
      scales_at_.push_back(planes[0].scales * s.page_size);
      bytes += reference::head_bytes(keys, values);
    }
    fill_pages();
    args.pages = upload(pages_), args.page_stride = s.page_size * args.layout.token_bytes;
    make_workspace(plugin_function<decltype(oscar_coded_decode_tokens_workspace)>(
        "oscar_coded_decode_tokens_workspace")(&args, s.query_tokens));
  }

  /// One query token goes through the function of one, whose workspace is the same.
  [[nodiscard]] int launch() override {
    return s.query_tokens == 1 ? plugin_function<decltype(oscar_coded_decode)>("oscar_coded_decode")(&args, nullptr)
                               : plugin_function<decltype(oscar_coded_decode_tokens)>("oscar_coded_decode_tokens")(
                                     &args, s.query_tokens, nullptr);
  }
  [[nodiscard]] static DType dtype_of(const DecodeShape&) { return DType::kBF16; }

 private:
  /// Random codes, and scales near 1.
  void fill_pages() {
    pages_.resize(static_cast<std::size_t>(history_.total) * s.page_size * args.layout.token_bytes);
    for (std::byte& byte : pages_) byte = static_cast<std::byte>(engine_());
    for (int page = 0; page < history_.total; ++page) {
      for (int head = 0; head < s.kv_heads; ++head) {
        std::byte* const scales = data(page) + scales_at_[static_cast<std::size_t>(head)];
        for (int i = 0; i < 4 * s.page_size; ++i) scales[i] = static_cast<std::byte>(112 + engine_() % 28);
      }
    }
  }

  std::byte* data(int page) { return &pages_[static_cast<std::size_t>(page * s.page_size * args.layout.token_bytes)]; }

  std::vector<double> packed_row(int side, int page, int head, int slot) override {
    std::vector<float> row(static_cast<std::size_t>(s.dim));
    rows_[static_cast<std::size_t>(side)][static_cast<std::size_t>(head)].read(
        reinterpret_cast<const std::uint8_t*>(data(page)), row, s.page_size, slot);
    return {row.begin(), row.end()};
  }

  std::mt19937 formats_;  // of its own, so that formats depend on nothing else
  CodedSideFormat sides_[2];
  std::array<std::vector<reference::CodedRows>, 2> rows_;  // of the KV heads
  std::vector<std::int64_t> scales_at_;                    // of the KV heads, in a page
  std::vector<std::byte> pages_;
};

}  // namespace oscar::test
