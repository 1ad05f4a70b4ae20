// SPDX-License-Identifier: MIT
#include "measure/attention/attention_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>

#include "base/errors.hpp"
#include "base/status.hpp"
#include "measure/keys_read.hpp"
#include "measure/kv_method.hpp"

namespace oscar {
namespace {

double ratio(double numerator, double denominator) { return denominator == 0 ? 0 : numerator / denominator; }

std::optional<double> decibels(double signal, double noise) {
  if (signal <= 0 || noise <= 0) return std::nullopt;
  return 10 * std::log10(signal / noise);
}

AttentionSums sums_of(const AttentionErrors& both, const AttentionErrors& k_only, const AttentionErrors& v_only) {
  AttentionSums sums;
  sums.both = both;
  sums.kl.add(both.query_kl);
  sums.both.query_kl.clear();
  sums.k_only = {k_only.output_error, k_only.output_cosine};
  sums.v_only = {v_only.output_error, v_only.output_cosine};
  return sums;
}

/// The rows of q at `positions`, as (positions, heads, dim) floats.
std::vector<float> gather(HeadsView q, std::span<const std::int64_t> positions) {
  const auto dim = static_cast<std::size_t>(q.head_dim);
  std::vector<float> rows(positions.size() * static_cast<std::size_t>(q.num_heads) * dim);
  auto out = std::span(rows);
  for (const std::int64_t position : positions) {
    for (int head = 0; head < q.num_heads; ++head) {
      q.row(position, head, out.first(dim));
      out = out.subspan(dim);
    }
  }
  return rows;
}

/// Bytes of rows that methods hold at a time.
constexpr std::int64_t kHeldBytes = 128 << 20;

/// How many methods hold one sequence at a time: float rows of queries, and of keys and values as stored and as they
/// are decoded.
std::size_t held_at_once(const QkvView& qkv) {
  const std::int64_t k = qkv.k.num_tokens * qkv.k.num_heads * qkv.k.head_dim;
  const std::int64_t v = qkv.v.num_tokens * qkv.v.num_heads * qkv.v.head_dim;
  const std::int64_t q = qkv.q.num_tokens * qkv.q.num_heads * qkv.q.head_dim;
  const std::int64_t bytes = (q + 2 * k + 2 * v) * static_cast<std::int64_t>(sizeof(float));
  return static_cast<std::size_t>(std::max<std::int64_t>(kHeldBytes / std::max<std::int64_t>(bytes, 1), 1));
}

/// All in one, keys alone and values alone.
std::vector<HistoryCodecs> candidates_of(const HistoryCodecs& codecs) {
  std::vector<HistoryCodecs> candidates{codecs};
  if (codecs != HistoryCodecs{}) candidates.insert(candidates.end(), {{codecs.key, {}}, {{}, codecs.value}});
  return candidates;
}

/// errors: of candidates_of() the method, by query head; rows: by KV head.
LayerSums layer_sums(const std::vector<std::vector<AttentionErrors>>& errors, const std::vector<RowErrors>& rows) {
  const auto& k_only = errors[errors.size() > 1 ? 1 : 0];
  const auto& v_only = errors[errors.size() > 1 ? 2 : 0];
  LayerSums sums;
  for (std::size_t h = 0; h < errors.front().size(); ++h) {
    sums.heads.push_back(sums_of(errors.front()[h], k_only[h], v_only[h]));
    sums.all.add(sums.heads.back());
  }
  const std::size_t group = sums.heads.size() / rows.size();
  for (const RowErrors& of_kv_head : rows) sums.all.rows.add(of_kv_head);
  for (std::size_t h = 0; h < sums.heads.size(); ++h) sums.heads[h].rows = rows[h / group];
  return sums;
}

}  // namespace

void AttentionSums::add(const AttentionSums& other) {
  both.add(other.both);
  for (const auto side : {&AttentionSums::k_only, &AttentionSums::v_only}) {
    (this->*side).error += (other.*side).error;
    (this->*side).cosine += (other.*side).cosine;
  }
  rows.add(other.rows);
  kl.add(other.kl);
}

AttentionMetrics AttentionSums::metrics() const {
  const auto queries = static_cast<double>(both.queries);
  AttentionMetrics m{.k_sqnr_db = decibels(rows.key_signal, rows.key_noise),
                     .v_sqnr_db = decibels(rows.value_signal, rows.value_noise),
                     .logit_nmse = ratio(both.logit_error, both.logit_norm),
                     .softmax_kl = ratio(both.softmax_kl, queries),
                     .softmax_kl_p99 = std::isfinite(both.softmax_kl) ? kl.quantile(0.99) : both.softmax_kl,
                     .output_rel_error = ratio(both.output_error, both.output_norm),
                     .output_rel_error_k_only = ratio(k_only.error, both.output_norm),
                     .output_rel_error_v_only = ratio(v_only.error, both.output_norm),
                     .output_cosine = ratio(both.output_cosine, queries),
                     .output_cosine_k_only = ratio(k_only.cosine, queries),
                     .output_cosine_v_only = ratio(v_only.cosine, queries),
                     .needle_mass_kept = {}};
  if (both.needle_mass > 0) m.needle_mass_kept = both.needle_kept / both.needle_mass;
  return m;
}

void LayerSums::add(const LayerSums& other) {
  all.add(other.all);
  heads.resize(std::max(heads.size(), other.heads.size()));
  for (std::size_t h = 0; h < other.heads.size(); ++h) heads[h].add(other.heads[h]);
}

Intervals intervals_of(std::span<const AttentionSums> sequences) {
  using Member = double AttentionErrors::*;
  const auto values = [&](Member member) {
    std::vector<double> all;
    for (const AttentionSums& sums : sequences) {
      all.push_back(member != nullptr ? sums.both.*member : static_cast<double>(sums.both.queries));
    }
    return all;
  };
  const std::vector<std::tuple<const char*, Member, Member>> ratios{
      {"softmax_kl", &AttentionErrors::softmax_kl, nullptr},
      {"logit_nmse", &AttentionErrors::logit_error, &AttentionErrors::logit_norm},
      {"output_rel_error", &AttentionErrors::output_error, &AttentionErrors::output_norm},
      {"output_cosine", &AttentionErrors::output_cosine, nullptr},
      {"needle_mass_kept", &AttentionErrors::needle_kept, &AttentionErrors::needle_mass}};
  Intervals intervals;
  for (const auto& [name, numerator, denominator] : ratios) {
    if (const auto interval = bootstrap(values(numerator), values(denominator))) intervals[name] = *interval;
  }
  return intervals;
}

std::vector<std::int64_t> sampled_positions(std::int64_t num_tokens, std::int64_t stride) {
  std::vector<std::int64_t> positions;
  for (std::int64_t p = num_tokens - 1; p >= 0; p -= stride) positions.push_back(p);
  std::reverse(positions.begin(), positions.end());
  return positions;
}

std::vector<LayerSums> measure_attention(const QkvView& sequence, std::span<const KvMethod> methods, int layer_id,
                                         std::int64_t stride, Precision precision, Backend& backend) {
  const std::vector<std::int64_t> positions = sampled_positions(sequence.q.num_tokens, stride);
  const std::vector<float> q = gather(sequence.q, positions);
  const QkvView exact{
      heads_view(q, static_cast<std::int64_t>(positions.size()), sequence.q.num_heads, sequence.q.head_dim), sequence.k,
      sequence.v};
  const std::size_t at_once = held_at_once(exact);
  std::vector<LayerSums> sums;
  for (std::size_t first = 0; first < methods.size(); first += at_once) {
    const auto some = methods.subspan(first, std::min(at_once, methods.size() - first));
    std::vector<HeldSequence> held;
    std::vector<std::vector<HistoryCodecs>> candidates;
    std::vector<ComparedSequence> compared;
    for (const KvMethod& method : some) {
      held.push_back(hold(method, layer_id, exact, positions, precision, backend));
      candidates.push_back(candidates_of(method.layer(layer_id).codecs()));
      compared.push_back({held.back().rows.get(), candidates.back(), method.windows});
    }
    const auto errors = backend.compare(compared);
    for (std::size_t m = 0; m < some.size(); ++m) {
      sums.push_back(layer_sums(errors[m], held[m].rows->row_errors(candidates[m].front(), some[m].windows)));
    }
  }
  return sums;
}

void attend(const KvMethod& method, int layer, const QkvView& qkv, SequenceRange queries, const ScoreRule& rule,
            Precision precision, Backend& backend, std::span<float> out) {
  QkvView asked = qkv;
  asked.q = qkv.q.tokens(queries.begin, queries.end);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(queries.size()));
  std::iota(positions.begin(), positions.end(), queries.begin);
  const HeldSequence held = hold(method, layer, asked, positions, precision, backend, &rule);
  held.rows->attend(method.layer(layer).codecs(), method.windows, out);
}

std::map<int, ScoreRule> rules_of(const ModelRunner& runner) {
  std::map<int, ScoreRule> rules;
  for (const int layer : runner.config().cache_layers()) rules[layer] = runner.score_rule(layer);
  return rules;
}

CodedDamage measure_attention_damage(QkvSource& source, const CodedPart& coded, Backend& backend) {
  OSCAR_CHECK(coded.layers.size() == 1);
  constexpr std::int64_t kQueries = 512;  // of the layer
  const int id = coded.layers.front().layer_id;
  const std::vector<KvMethod> methods{method_of(coded, coded.windows)};
  const std::unique_ptr<LayerStream> stream = source.open(id);
  const std::vector<std::int64_t> lengths = sequence_lengths(*stream);
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const std::int64_t stride = query_stride(tokens, kQueries);
  require_quantised(keys_of_attention(lengths, stride, coded.windows), "attention", "layer " + std::to_string(id),
                    coded.windows);
  AttentionSums sums;
  QkvChunk chunk;
  stream->rewind();
  while (stream->next(chunk)) {
    for (const SequenceRange& range : chunk.sequences) {
      throw_if_interrupted();
      if (range.size() == 0) continue;
      sums.add(
          measure_attention(chunk.view.tokens(range), methods, id, stride, Precision::kServing, backend).front().all);
    }
  }
  const AttentionMetrics metrics = sums.metrics();
  return {metrics.output_rel_error_k_only, metrics.output_rel_error_v_only};
}

}  // namespace oscar
