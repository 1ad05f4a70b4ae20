// SPDX-License-Identifier: MIT
// compare(): passes over candidates and KV heads, and in each of them blocks of queries.
#include "kernels/cuda/compare.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status.hpp"
#include "kernels/cuda/row_codec.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {

namespace {

enum : ProductTable::List { kScores, kWindowOutputs, kHistoryOutputs, kRestored, kLists };

/// From the beginning to the last key that a query sees.
Part seen_part(const HeldData& held, const ComparePass& pass) {
  return {pass.first_head, pass.heads, 0, held.host_positions.back() + 1};
}

/// Rows of scores begin at multiples of 128 bytes.
std::int64_t aligned(std::int64_t keys) { return (keys + 15) / 16 * 16; }

void add_rows(const PassErrors& rows, std::size_t codec_rows, std::size_t candidate_rows, std::int64_t head,
              std::int64_t g, std::int64_t sub_head, AttentionErrors& sums) {
  for (std::int64_t i = head * rows.total + sub_head; i < (head + 1) * rows.total; i += g) {
    const auto row = static_cast<std::size_t>(i);
    sums.softmax_kl += rows.kl[codec_rows + row];
    sums.query_kl.push_back(rows.kl[codec_rows + row]);
    sums.logit_error += rows.logit_error[codec_rows + row];
    sums.logit_norm += rows.logit_norm[row];
    sums.needle_mass += rows.needle_mass[row];
    sums.needle_kept += rows.needle_kept[codec_rows + row];
    sums.output_error += rows.output_error[candidate_rows + row];
    sums.output_norm += rows.output_norm[row];
    sums.output_cosine += rows.output_cosine[candidate_rows + row];
    ++sums.queries;
  }
}

}  // namespace

PassSide::PassSide(const Context& context, const HeldRows& rows, const Part& part, CodecChoice choice,
                   Precision precision)
    : choice_(std::move(choice)),
      native_(context, 1, part.heads, part.tokens, rows.dim()),
      stored_(context, 1, part.heads, part.tokens, rows.dim()),
      decoded_(context, choice_.decoding(), part.heads, part.tokens, rows.dim()) {
  widen(context, rows.native(part), Precision::kExact, native_.data(), native_.matrix_size());
  widen(context, rows.stored(part), Precision::kExact, stored_.data(), stored_.matrix_size());
  std::vector<HistoryCodec> codecs;
  if (rows.has_history() && choice_.decoding() > 0) {
    // Whatever codec is named: one matrix for all.
    widen(context, rows.history(part), Precision::kExact, decoded_.data(), decoded_.matrix_size());
    place_.assign(choice_.codecs.size(), 0);
    return;
  }
  for (const std::optional<HistoryCodec>& codec : choice_.codecs) {
    place_.push_back(codecs.size());
    if (codec) codecs.push_back(*codec);
  }
  quantize_rows(context, rows.stored(part), codecs, precision, {.decoded_f64 = decoded_.data()}, part.first_head);
}

ComparePassRun::ComparePassRun(const Context& context, const HeldData& held, std::span<const HistoryCodecs> candidates,
                               Windows windows, const ComparePass& pass)
    : context_(context),
      held_(held),
      windows_(windows),
      pass_(pass),
      g_(held.q.heads_per_kv_head()),
      capacity_(pass.block * g_),
      total_(held.q.tokens() * g_),
      stride_(aligned(held.host_positions.back() + 1)),
      key_(context, held.k, seen_part(held, pass), choose_codecs(candidates, &HistoryCodecs::key), held.precision),
      value_(context, held.v, seen_part(held, pass), choose_codecs(candidates, &HistoryCodecs::value), held.precision),
      key_codecs_(key_.choice().codecs.size()),
      candidates_(candidates.size()),
      native_q_(context, 1, pass.heads, capacity_, held.q.dim()),
      stored_q_(context, 1, pass.heads, capacity_, held.q.dim()),
      scores_(context, 1, pass.heads, capacity_, stride_),
      probabilities_(context, 1, pass.heads, capacity_, stride_),
      window_(context, 1, pass.heads, capacity_, stride_),
      history_(context, key_codecs_, pass.heads, capacity_, stride_),
      window_weights_(context, key_codecs_, pass.heads, capacity_, stride_),
      outputs_(context, 1, pass.heads, capacity_, held.v.dim()),
      mixed_outputs_(context, candidates_, pass.heads, capacity_, held.v.dim()),
      restored_(context, held.value_read.exists() ? candidates_ : 0, pass.heads, capacity_, held.v.dim()),
      rows_(context, static_cast<std::size_t>(pass.heads * capacity_)),
      results_(context, (3 + 3 * key_codecs_ + 2 * candidates_) * static_cast<std::size_t>(pass.heads * total_)),
      products_(kLists) {
  for (std::size_t head = 0; head < static_cast<std::size_t>(pass.heads); ++head) list_products(head);
  products_.upload(context);
}

void ComparePassRun::list_products(std::size_t head) {
  products_.add(kScores, native_q_.at(head), key_.native(head), scores_.at(head));
  products_.add(kScores, stored_q_.at(head), key_.stored(head), window_.at(head));
  for (std::size_t codec = 0; codec < key_codecs_; ++codec) {
    products_.add(kScores, stored_q_.at(head), key_.history(head, codec), history_.at(head, codec));
  }
  products_.add(kWindowOutputs, probabilities_.at(head), value_.native(head), outputs_.at(head));
  for (std::size_t i = 0; i < candidates_; ++i) {
    const std::size_t key_codec = key_.choice().of_candidate[i];
    const std::size_t value_codec = value_.choice().of_candidate[i];
    products_.add(kWindowOutputs, window_weights_.at(head, key_codec), value_.stored(head), mixed_outputs_.at(head, i));
    products_.add(kHistoryOutputs, history_.at(head, key_codec), value_.history(head, value_codec),
                  mixed_outputs_.at(head, i));
    if (!held_.value_read.exists()) continue;
    products_.add(kRestored, mixed_outputs_.at(head, i),
                  held_.value_read.matrix(pass_.first_head + static_cast<int>(head), held_.precision),
                  restored_.at(head, i));
  }
}

void ComparePassRun::run(std::int64_t first, std::int64_t count) {
  const QueryBlock block{.positions = held_.positions.data() + first,
                         .g = static_cast<int>(g_),
                         .heads = pass_.heads,
                         .rows = count * g_,
                         .capacity = capacity_,
                         .keys = held_.host_positions[static_cast<std::size_t>(first + count - 1)] + 1,
                         .stride = stride_,
                         .windows = windows_};
  const PassErrors errors = errors_at(results_.data(), first * g_);
  add_scores(block, first, errors);
  add_outputs(block, errors);
}

void ComparePassRun::add_scores(const QueryBlock& block, std::int64_t first, const PassErrors& errors) {
  const std::int64_t dim = held_.q.dim();
  const Part queries{pass_.first_head, pass_.heads, first, block.rows / g_};
  widen(context_, held_.q.native(queries), Precision::kExact, native_q_.data(), native_q_.matrix_size());
  widen(context_, held_.q.stored(queries), Precision::kExact, stored_q_.data(), stored_q_.matrix_size());
  products_.multiply(context_, kScores,
                     {.m = block.rows,
                      .n = block.keys,
                      .k = dim,
                      .lda = dim,
                      .ldb = dim,
                      .ldc = stride_,
                      .b = Transpose::kYes,
                      .alpha = 1 / std::sqrt(static_cast<double>(dim))});
  exact_softmax(context_, block, scores_.data(), probabilities_.data(), rows_.data(), errors);
  mixed_softmax(
      context_, block,
      {scores_.data(), probabilities_.data(), rows_.data(), window_.data(), history_.data(), window_weights_.data()},
      key_codecs_, errors);
}

void ComparePassRun::add_outputs(const QueryBlock& block, const PassErrors& errors) {
  const std::int64_t dim = held_.v.dim();
  ProductShape shape{.m = block.rows, .n = dim, .k = block.keys, .lda = stride_, .ldb = dim, .ldc = dim};
  products_.multiply(context_, kWindowOutputs, shape);
  shape.accumulate = true;
  products_.multiply(context_, kHistoryOutputs, shape);
  if (held_.precision == Precision::kServing) round_to_bf16(context_, mixed_outputs_.values());
  // o = o' R^T
  products_.multiply(context_, kRestored,
                     {.m = block.rows, .n = dim, .k = dim, .lda = dim, .ldb = dim, .ldc = dim, .b = Transpose::kYes});
  output_errors(context_, block, outputs_.data(), held_.value_read.exists() ? restored_.data() : mixed_outputs_.data(),
                static_cast<int>(dim), candidates_, errors);
}

PassErrors ComparePassRun::errors_at(double* values, std::int64_t first_row) const {
  const std::int64_t rows = pass_.heads * total_;
  const auto codecs = static_cast<std::int64_t>(key_codecs_), candidates = static_cast<std::int64_t>(candidates_);
  const auto next = [&values, rows](std::int64_t copies) { return std::exchange(values, values + copies * rows); };
  return {.logit_norm = next(1),
          .output_norm = next(1),
          .needle_mass = next(1),
          .kl = next(codecs),
          .logit_error = next(codecs),
          .needle_kept = next(codecs),
          .output_error = next(candidates),
          .output_cosine = next(candidates),
          .total = total_,
          .first_row = first_row};
}

void ComparePassRun::add_to(std::span<std::vector<AttentionErrors>> errors) const {
  std::vector<double> values = results_.to_host(context_);
  const PassErrors rows = errors_at(values.data(), 0);
  const auto rows_of_all_heads = static_cast<std::size_t>(pass_.heads * total_);
  for (std::size_t i = 0; i < candidates_; ++i) {
    const std::size_t key_codec = key_.choice().of_candidate[i];
    for (std::int64_t head = 0; head < pass_.heads * g_; ++head) {
      add_rows(rows, key_codec * rows_of_all_heads, i * rows_of_all_heads, head / g_, g_, head % g_,
               errors[i][static_cast<std::size_t>(pass_.first_head * g_ + head)]);
    }
  }
}

namespace {

/// Bytes of rows, and again of scores: 96 MiB, less where memory has been short. Two lanes of a fit compare sequences.
std::size_t pass_budget(const Context& context) { return 3 * context.device().chunk_bytes(); }

}  // namespace

std::vector<std::vector<AttentionErrors>> compare(const Context& context, const HeldData& held,
                                                  std::span<const HistoryCodecs> candidates, Windows windows) {
  const auto heads = static_cast<std::size_t>(held.k.kv_heads() * held.q.heads_per_kv_head());
  std::vector errors(candidates.size(), std::vector<AttentionErrors>(heads));
  const std::int64_t queries = held.q.tokens();
  if (queries == 0) return errors;
  const CompareShape shape{.kv_heads = held.k.kv_heads(),
                           .g = held.q.heads_per_kv_head(),
                           .queries = queries,
                           .keys = held.host_positions.back() + 1,
                           .key_dim = held.k.dim(),
                           .value_dim = held.v.dim()};
  for (const ComparePass& pass : compare_passes(shape, candidates, pass_budget(context))) {
    ComparePassRun run(context, held, candidates.subspan(pass.first_candidate, pass.candidates), windows, pass);
    for (std::int64_t first = 0; first < queries; first += pass.block) {
      throw_if_interrupted();
      run.run(first, std::min(pass.block, queries - first));
    }
    run.add_to(std::span(errors).subspan(pass.first_candidate, pass.candidates));
  }
  return errors;
}

}  // namespace oscar::cuda
