// SPDX-License-Identifier: MIT
#include "on_cpu.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/coded_turn.hpp"
#include "kernels/reference/attention.hpp"
#include "kernels/server_arguments.hpp"
#include "stable_torch.hpp"

namespace oscar::operators::on_cpu {
namespace {

using Row = std::vector<float>;
using Doubles = std::vector<double>;
constexpr std::int64_t kTokens = 32;  // whose rows are worth a thread

std::size_t size_of_row(int channels) { return static_cast<std::size_t>(channels); }

/// Values of a type that lie one after another.
Row read(const void* data, oscar_dtype type, int count) {
  if (type == OSCAR_FLOAT32) return {static_cast<const float*>(data), static_cast<const float*>(data) + count};
  Row row(size_of_row(count));
  std::transform(static_cast<const std::uint16_t*>(data), static_cast<const std::uint16_t*>(data) + count, row.begin(),
                 float_from_bf16);
  return row;
}

void write_bf16(void* data, const Row& row) {
  auto* const to = static_cast<std::uint16_t*>(data);
  std::transform(row.begin(), row.end(), to, bf16_from_float);
}

const std::uint8_t* bytes_of(const void* data) { return static_cast<const std::uint8_t*>(data); }
std::uint8_t* bytes_of(void* data) { return static_cast<std::uint8_t*>(data); }

/// The row of a slot of a pool that is written or read.
std::uint8_t* row_of(const oscar_paged_rows& pool, std::int64_t page, std::int64_t token, std::int64_t head) {
  return bytes_of(const_cast<void*>(pool.data)) + page * pool.page_stride + token * pool.token_stride +
         head * pool.head_stride;
}

void* row_of(const oscar_bf16_rows& rows, std::int64_t token, std::int64_t head) {
  return bytes_of(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

/// Runs task(0) to task(count - 1), side by side where there are more than `grain`.
template <class Task>
void in_parallel(std::int64_t count, std::int64_t grain, const Task& task) {
  torch::stable::parallel_for(0, count, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) task(i);
  });
}

/// bfloat16(bfloat16(x - before) M + after), with float32 sums. matrix: (d, d).
Row product(Row x, const std::uint16_t* matrix, const float* before, const float* after) {
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float value = round_to_bf16(before == nullptr ? x[i] : x[i] - before[i]);
    const std::uint16_t* const row = matrix + i * x.size();
    for (std::size_t j = 0; j < y.size(); ++j) y[j] += value * float_from_bf16(row[j]);
  }
  for (std::size_t j = 0; j < y.size(); ++j) y[j] = round_to_bf16(after == nullptr ? y[j] : y[j] + after[j]);
  return y;
}

/// A packed row of a key before RoPE becomes the key (kBack: a key such a row), with no rounding but float32's.
template <bool kBack>
void turn(const oscar_coded_turned& turned, std::int32_t position, int head, Row& row) {
  const Row from = row;
  const std::size_t count = row.size() / 2;
  for (const CodedTurnPair& pair :
       std::span(static_cast<const CodedTurnPair*>(turned.table) + size_of_row(head) * count, count)) {
    const auto& read = kBack ? pair.channel : pair.coordinate;
    const auto& written = kBack ? pair.coordinate : pair.channel;
    const PairValues x{from[size_of_row(read[0])], from[size_of_row(read[1])]};
    const PairValues y =
        kBack ? unturned_pair(pair, x, position, turned.is_far) : turned_pair(pair, x, position, turned);
    row[size_of_row(written[0])] = y.first, row[size_of_row(written[1])] = y.second;
  }
}

}  // namespace

CodedLayer::CodedLayer(int heads, int dim, const std::array<const std::uint8_t*, 2>& bits,
                       const std::array<const float*, 2>& steps, const std::array<const float*, 2>& sigmas) {
  const int blocks = dim / 8;
  for (int head = 0; head < heads; ++head) {
    std::array<int, 2> strings{};
    for (std::size_t side = 0; side < 2; ++side)
      strings[side] = reference::bytes_of_string({bits[side] + head * blocks, size_of_row(blocks)});
    const auto planes = reference::planes_of_head(token_bytes, strings[0], strings[1]);
    for (std::size_t side = 0; side < 2; ++side) {
      const float *const step = steps[side] + head * dim, *const sigma = sigmas[side] + head * dim;
      CodedFormat format{{}, {step, step + dim}, {sigma, sigma + dim}};
      for (int i = 0; i < dim; ++i) format.levels.push_back(1 << std::min<int>(bits[side][head * blocks + i / 8], 9));
      sides[side].emplace_back(std::move(format), planes[side]);
    }
    token_bytes += reference::head_bytes(strings[0], strings[1]);
  }
}

void coded_pack(const oscar_coded_pack_args& args, const CodedLayer& layer) {
  if (args.k.x == nullptr && args.v.x == nullptr) fail("coded_pack: rows neither of keys nor of values");
  in_parallel(args.num_tokens, kTokens, [&](std::int64_t t) {
    const std::int64_t slot = args.slots[t];
    for (int number = 0; slot >= 0 && number < 2; ++number) {
      const oscar_coded_rows& rows = number == 0 ? args.k : args.v;
      for (int head = 0; rows.x != nullptr && head < args.num_kv_heads; ++head) {
        Row row =
            read(bytes_of(rows.x) + t * rows.x_token_stride + head * rows.x_head_stride, OSCAR_BFLOAT16, args.head_dim);
        if (number == 0 && args.turned.table != nullptr) {
          turn<true>(args.turned, args.turned.positions[t], head, row);
          for (float& value : row) value = round_to_bf16(value);
        }
        layer.rows(number, head)
            .write(row, bytes_of(args.pages) + slot / args.page_size * args.page_stride, args.page_size,
                   slot % args.page_size);
      }
    }
  });
}

void coded_unpack(const oscar_coded_unpack_args& args, const CodedLayer& layer) {
  if (args.k.data == nullptr && args.v.data == nullptr) fail("coded_unpack: room neither for keys nor for values");
  in_parallel(args.num_tokens, kTokens, [&](std::int64_t t) {
    const std::int64_t slot = args.slots[t];
    for (int number = 0; slot >= 0 && number < 2; ++number) {
      const oscar_bf16_rows& rows = number == 0 ? args.k : args.v;
      for (int head = 0; rows.data != nullptr && head < args.num_kv_heads; ++head) {
        Row row(size_of_row(args.head_dim));
        layer.rows(number, head)
            .read(bytes_of(args.pages) + slot / args.page_size * args.page_stride, row, args.page_size,
                  slot % args.page_size);
        if (number == 0 && args.turned.table != nullptr) {
          for (float& value : row) value = round_to_bf16(value);
          turn<false>(args.turned, args.turned.positions[t], head, row);
        }
        write_bf16(row_of(rows, t, head), row);
      }
    }
  });
}

void coded_decode(const oscar_coded_decode_args& args, const CodedLayer& layer) {
  if (const char* wrong = cuda::batch_problem(args)) fail("coded_decode: ", wrong);
  const int kv_heads = args.layout.num_kv_heads, dim = args.layout.head_dim, query_tokens = args.query_tokens;
  const int group = args.num_q_heads / kv_heads;
  const double scale = args.softmax_scale * std::sqrt(dim);  // over that of the reference
  const ScoreRule rule{.soft_cap = args.soft_cap};
  in_parallel(std::int64_t{args.batch} * kv_heads, 1, [&](std::int64_t task) {
    const std::int64_t b = task / kv_heads, head = task % kv_heads;
    const int history = args.history.lengths[b], window = args.window.lengths[b];
    std::array<reference::CacheRows, 2> rows{{{dim, {}, {}}, {dim, {}, {}}}};
    const auto page_of = [&](const oscar_page_table& table, int token) {
      return table.pages[b * table.pages_per_sequence + token / table.page_size];
    };
    for (int side = 0; side < 2; ++side) {
      Row& all = rows[static_cast<std::size_t>(side)].stored;
      const auto add = [&](const Row& row) { all.insert(all.end(), row.begin(), row.end()); };
      for (int t = 0; t < history; ++t) {
        Row row(size_of_row(dim));
        layer.rows(side, head)
            .read(bytes_of(args.pages) + page_of(args.history, t) * args.page_stride, row, args.history.page_size,
                  t % args.history.page_size);
        if (side == 0 && args.turned.table != nullptr) {
          turn<false>(args.turned, args.turned.positions[b] + t, static_cast<int>(head), row);
        }
        add(row);
      }
      const oscar_paged_rows& pool = side == 0 ? args.k_window : args.v_window;
      for (int t = 0; t < window; ++t)
        add(read(row_of(pool, page_of(args.window, t), t % args.window.page_size, head), OSCAR_BFLOAT16, dim));
    }
    for (int i = 0; i < query_tokens * group; ++i) {
      const int token = i / group, seen = history + std::max(window - (query_tokens - 1 - token), 0);
      const std::int64_t at = (b * query_tokens + token) * args.num_q_heads + head * group + i % group;
      const Row q = read(bytes_of(args.q) + 2 * at * dim, OSCAR_BFLOAT16, dim);
      reference::Query query{{q.begin(), q.end()}, seen - 1, 0};
      for (double& x : query.row) x *= scale;
      const reference::Attention found = seen > 0 ? reference::attend_exactly(query, rows[0], rows[1], &rule)
                                                  : reference::Attention{{}, {}, Doubles(q.size())};
      std::ranges::copy(found.output, args.out + at * dim);
      const auto top = std::ranges::max_element(found.probabilities) - found.probabilities.begin();
      args.lse[at] = seen > 0 ? static_cast<float>(rule.capped(found.scores[top]) - std::log(found.probabilities[top]))
                              : -INFINITY;
    }
  });
}

void rotate_rows(std::span<const oscar_row_product> products, int head_dim) {
  for (const oscar_row_product& call : products) {
    if (call.num_tokens == 0) continue;
    if (call.num_matrices < 1 || call.num_heads % call.num_matrices != 0)
      fail("rotate_rows: num_heads must be a multiple of num_matrices");
    if (call.num_means > 0 && call.num_heads % call.num_means != 0)
      fail("rotate_rows: num_heads must be a multiple of num_means");
    in_parallel(call.num_tokens, kTokens / 4, [&](std::int64_t t) {
      for (int head = 0; head < call.num_heads; ++head) {
        const std::int64_t matrix = head / (call.num_heads / call.num_matrices);
        const float* const mean = call.num_means == 0
                                      ? nullptr
                                      : call.means + std::int64_t{head / (call.num_heads / call.num_means)} * head_dim;
        const Row y = product(
            read(bytes_of(call.x) + t * call.x_token_stride + head * call.x_head_stride, call.x_dtype, head_dim),
            static_cast<const std::uint16_t*>(call.matrices) + matrix * head_dim * head_dim,
            call.adds_mean != 0 ? nullptr : mean, call.adds_mean != 0 ? mean : nullptr);
        if (call.out.data != nullptr) write_bf16(row_of(call.out, t, head), y);
        if (call.kept.data != nullptr && call.slots[t] >= 0) write_bf16(row_of(call.kept, call.slots[t], head), y);
      }
    });
  }
}

void step_windows(const WindowStepCall& call) {
  struct Request {
    int sinks, begin, after;
    bool takes_part;
  };
  const auto copy_of = [&](std::int64_t block, std::int64_t token) {
    const std::int64_t entry = call.entry_of[block];
    return static_cast<std::int32_t>(entry < 0 ? -1 : entry * call.block_size + token % call.block_size);
  };
  std::vector<Request> requests;
  std::vector<std::int32_t> asked;
  for (int r = 0; r < call.requests; ++r) {
    const int count = call.starts[r + 1] - call.starts[r], before = std::max(call.lengths[r] - count, 0);
    const int after = count > 0 ? call.lengths[r] : before, sinks = std::min(before, call.sink);
    const int begin = std::max(before + 1 - call.recent, sinks);
    requests.push_back({sinks, begin, after, after > before});
    const auto ask_for = [&](int first, int end) {  // blocks of the tokens [first, end)
      for (int i = first / call.block_size; i * call.block_size < end; ++i) {
        const std::int32_t block = call.table[r * call.table_stride + i];
        if (call.entry_of[block] >= 0) {
          call.read_in[call.entry_of[block]] = call.step;
        } else if (std::ranges::find(asked, block) == asked.end()) {
          asked.push_back(block);
        }
      }
    };
    if (after > before) ask_for(0, std::min(after, call.sink)), ask_for(begin, after);
  }
  for (const std::int32_t block : asked) {  // those that were longest not read make room
    const std::int64_t entry = std::min_element(call.read_in, call.read_in + call.entries) - call.read_in;
    if (call.read_in[entry] == call.step) continue;  // there are too few
    if (call.block_of[entry] >= 0) call.entry_of[call.block_of[entry]] = -1;
    call.entry_of[block] = entry, call.block_of[entry] = block, call.read_in[entry] = call.step;
  }
  for (int t = 0; t < call.all_tokens; ++t) {
    const std::int64_t slot = call.written[t];
    call.slots[t] = static_cast<std::int32_t>(slot);
    call.kept[t] = slot < 0 ? -1 : copy_of(slot / call.block_size, slot);
  }
  const int width = call.sink + call.recent - 1 + call.new_tokens;
  for (int r = 0; r < call.requests; ++r) {
    const auto& [sinks, begin, after, takes_part] = requests[static_cast<std::size_t>(r)];
    const std::int32_t* const blocks = call.table + r * call.table_stride;
    std::copy_n(blocks + call.table_width - call.page_width, call.page_width,
                call.pages + std::int64_t{r} * call.page_width);
    for (int place = 0; place < width; ++place) {
      const int token = place < sinks ? place : place + begin - sinks;
      const int block = blocks[std::min(token / call.block_size, call.table_width - 1)];
      call.copies[std::int64_t{r} * width + place] = std::max(copy_of(block, token), 0);
    }
    call.history[r] = takes_part ? begin - sinks : 0;
    call.copy_lengths[r] = takes_part ? sinks + after - begin : 0;
  }
}

}  // namespace oscar::operators::on_cpu
