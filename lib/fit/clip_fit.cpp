// SPDX-License-Identifier: MIT
#include "fit/clip_fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

/// A number in [0, bound), the same on every platform (std::uniform_int_distribution is not).
std::uint64_t draw(std::mt19937_64& random, std::uint64_t bound) { return random() % bound; }

/// Of one sequence: more where the windows would leave too little history.
std::int64_t most_tokens(Windows windows, const ClipFitOptions& options) {
  return std::max(options.max_sequence_tokens, windows.sink + windows.recent + options.max_sequence_tokens / 4);
}

/// Indices of the layer's sequences to sample, ascending.
std::set<std::size_t> choose_sequences(const std::vector<std::int64_t>& lengths, Windows windows,
                                       const ClipFitOptions& options) {
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > windows.sink + windows.recent) candidates.push_back(i);
  }
  std::mt19937_64 random(options.seed);
  for (std::size_t i = candidates.size(); i > 1; --i) std::swap(candidates[i - 1], candidates[draw(random, i)]);
  std::set<std::size_t> chosen;
  std::int64_t tokens = 0;
  for (const std::size_t index : candidates) {
    if (tokens >= options.sample_tokens) break;
    chosen.insert(index);
    tokens += std::min(lengths[index], most_tokens(windows, options));
  }
  return chosen;
}

/// From the file if there is one: touching a map of it makes threads wait for each other.
void copy_rows(const HeadsView& rows, std::span<std::byte> to) {
  if (rows.file.descriptor >= 0) return read_at(rows.file.descriptor, rows.file.offset, to);
  std::memcpy(to.data(), rows.data, to.size());
}

/// Distinct positions that see history: [sink + recent, tokens), ascending.
std::vector<std::int64_t> choose_queries(std::int64_t tokens, Windows windows, std::int64_t count,
                                         std::mt19937_64& random) {
  const std::int64_t first = windows.sink + windows.recent;
  std::vector<std::int64_t> positions(static_cast<std::size_t>(tokens - first));
  std::iota(positions.begin(), positions.end(), first);
  const auto wanted = std::min(positions.size(), static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < wanted; ++i) std::swap(positions[i], positions[i + draw(random, positions.size() - i)]);
  positions.resize(wanted);
  std::sort(positions.begin(), positions.end());
  return positions;
}

/// Room for the first tokens of a sequence, with `num_queries` of its queries.
SampledSequence choose_rows(const QkvView& view, std::int64_t tokens, Windows windows, std::int64_t num_queries,
                            std::mt19937_64& random) {
  const auto room = [](const HeadsView& rows, std::int64_t count) {
    return Tensor(rows.dtype, {count, rows.num_heads, rows.head_dim});
  };
  std::vector<std::int64_t> positions = choose_queries(tokens, windows, num_queries, random);
  const auto queries = static_cast<std::int64_t>(positions.size());
  return {room(view.q, queries), room(view.k, tokens), room(view.v, tokens), std::move(positions)};
}

/// begin: of the sequence.
void copy_sequence(const QkvView& view, std::int64_t begin, SampledSequence& out) {
  const std::int64_t end = begin + out.k.shape[0];
  copy_rows(view.k.tokens(begin, end), out.k.data);
  copy_rows(view.v.tokens(begin, end), out.v.data);
  const auto row_bytes = static_cast<std::size_t>(view.q.bytes_per_token());
  for (std::size_t i = 0; i < out.query_positions.size(); ++i) {
    const std::int64_t token = begin + out.query_positions[i];
    copy_rows(view.q.tokens(token, token + 1), std::span(out.q.data).subspan(i * row_bytes, row_bytes));
  }
}

/// Brings the sampled sequences of all processes together in the one that fits the layer; the others keep none.
/// here: whether this process has the rows of a sequence.
std::vector<SampledSequence> gathered(std::vector<SampledSequence> sample, const std::vector<bool>& here,
                                      SharedLayer& shared) {
  const auto tensors_of = [](SampledSequence& sequence) {
    return std::array<Tensor*, 3>{&sequence.q, &sequence.k, &sequence.v};
  };
  std::string own;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    if (!here[i]) continue;
    for (const Tensor* tensor : tensors_of(sample[i])) {
      own.append(reinterpret_cast<const char*>(tensor->data.data()), tensor->data.size());
    }
  }
  const std::string all = shared.gather(own);
  if (!shared.fits()) return {};
  std::size_t begin = 0;
  for (SampledSequence& sequence : sample) {
    for (Tensor* tensor : tensors_of(sequence)) {
      OSCAR_CHECK(all.size() - begin >= tensor->data.size());
      std::memcpy(tensor->data.data(), all.data() + begin, tensor->data.size());
      begin += tensor->data.size();
    }
  }
  return sample;
}

QkvView view_of(const SampledSequence& sequence) {
  return {heads_view(sequence.q, "q"), heads_view(sequence.k, "k"), heads_view(sequence.v, "v")};
}

/// The codec at every ratio: for the keys, or for the values if the key codec is settled.
std::vector<HistoryCodecs> candidates(const RowCodec& codec, const std::optional<HistoryCodec>& key) {
  std::vector<HistoryCodecs> all;
  for (const double ratio : clip_candidates()) {
    const RowCodec candidate = with_ratio(codec, ratio);
    all.push_back(key ? HistoryCodecs{key, candidate} : HistoryCodecs{candidate, {}});
  }
  return all;
}

std::vector<std::unique_ptr<MixedSequence>> hold_all(const std::vector<SampledSequence>& sample, const Transform& key,
                                                     const Transform& value, Backend& backend) {
  std::vector<std::unique_ptr<MixedSequence>> held;
  for (const SampledSequence& sequence : sample) {
    held.push_back(backend.hold({view_of(sequence), sequence.query_positions, &key, &value}));
  }
  return held;
}

/// Per candidate and KV head, over all sequences.
std::vector<std::vector<AttentionErrors>> errors_of_heads(const std::vector<std::unique_ptr<MixedSequence>>& sequences,
                                                          const std::vector<HistoryCodecs>& candidates, int kv_heads,
                                                          Windows windows) {
  std::vector<std::vector<AttentionErrors>> sums(candidates.size(),
                                                 std::vector<AttentionErrors>(static_cast<std::size_t>(kv_heads)));
  for (const auto& sequence : sequences) {
    const auto errors = sequence->compare(candidates, windows);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::size_t group = errors[i].size() / sums[i].size();
      for (std::size_t head = 0; head < errors[i].size(); ++head) sums[i][head / group].add(errors[i][head]);
    }
  }
  return sums;
}

AttentionErrors total(const std::vector<AttentionErrors>& heads) {
  AttentionErrors sum;
  for (const AttentionErrors& head : heads) sum.add(head);
  return sum;
}

/// Recipes without moments meet rows only here.
void require_usable(const SampledSequence& sequence, const std::string& where) {
  for (const auto& [name, tensor] : {std::pair{"q", &sequence.q}, {"k", &sequence.k}, {"v", &sequence.v}}) {
    const std::vector<double> values = tensor->to_doubles();
    if (!std::ranges::all_of(values, [](double v) { return std::isfinite(v); })) {
      throw DataError(std::string(name) + " has NaN or Inf", where, "dump this layer again, or leave the sequence out");
    }
    if (!values.empty() && std::ranges::all_of(values, [](double v) { return v == 0; })) {
      throw DataError(std::string("every ") + name + " of a sequence is zero", where,
                      "look at how it was dumped, and dump this layer again");
    }
  }
}

using Metric = double (*)(const AttentionErrors&);
double mean_kl(const AttentionErrors& errors) { return errors.softmax_kl / static_cast<double>(errors.queries); }
double output_rel_error(const AttentionErrors& errors) {
  return errors.output_error / std::max(errors.output_norm, 1e-300);
}

/// errors: by candidate and KV head.
SideClipScores scores_by(const std::vector<std::vector<AttentionErrors>>& errors, Metric metric) {
  SideClipScores scores{{}, std::vector<std::vector<double>>(errors.front().size())};
  for (const std::vector<AttentionErrors>& heads : errors) {
    scores.layer.push_back(metric(total(heads)));
    for (std::size_t head = 0; head < heads.size(); ++head) scores.heads[head].push_back(metric(heads[head]));
  }
  return scores;
}

}  // namespace

RowCodec with_ratio(RowCodec codec, double ratio) {
  codec.clip_ratio = ratio;
  return codec;
}

const std::vector<double>& clip_candidates() {
  static const std::vector<double> kRatios{1.0, 0.98, 0.96, 0.95, 0.94, 0.93, 0.92, 0.9, 0.88, 0.85};
  return kRatios;
}

std::vector<SampledSequence> sample_layer(LayerStream& layer, Windows windows, const ClipFitOptions& options) {
  std::vector<std::int64_t> lengths;
  std::vector<std::size_t> ends;  // of chunks, in sequences
  QkvChunk chunk;
  layer.rewind();
  while (layer.skip(chunk)) {
    for (const SequenceRange& range : chunk.sequences) lengths.push_back(range.size());
    ends.push_back(lengths.size());
  }
  const std::set<std::size_t> chosen = choose_sequences(lengths, windows, options);
  std::mt19937_64 random(options.seed + 1);
  std::vector<SampledSequence> sample;
  std::vector<bool> here;  // by sequence
  std::size_t index = 0;
  layer.rewind();
  for (const std::size_t end : ends) {
    if (sample.size() == chosen.size()) break;
    const auto first = chosen.lower_bound(index);
    const bool wanted = first != chosen.end() && *first < end;
    if (!(wanted ? layer.next(chunk) : layer.skip(chunk))) break;
    if (!wanted) {
      index = end;
      continue;
    }
    for (const SequenceRange& range : chunk.sequences) {
      if (!chosen.contains(index++)) continue;
      const std::int64_t rows_per_query = chunk.view.q.num_heads * static_cast<std::int64_t>(chosen.size());
      const std::int64_t queries = std::max<std::int64_t>(options.query_rows / rows_per_query, 1);
      const std::int64_t tokens = std::min(range.size(), most_tokens(windows, options));
      sample.push_back(choose_rows(chunk.view, tokens, windows, queries, random));
      here.push_back(chunk.here);
      if (!chunk.here) continue;
      copy_sequence(chunk.view, range.begin, sample.back());
      require_usable(sample.back(), chunk.where);
    }
  }
  SharedLayer* const shared = layer.shared();
  return shared == nullptr ? sample : gathered(std::move(sample), here, *shared);
}

std::string describe(std::span<const SampledSequence> sample, const ClipFitOptions& options) {
  std::int64_t keys = 0;
  std::size_t queries = 0;
  for (const SampledSequence& sequence : sample) {
    keys += sequence.k.shape[0];
    queries += sequence.query_positions.size();
  }
  return plural(keys, "key") + " in " + plural(static_cast<std::int64_t>(sample.size()), "sequence") + ", " +
         plural(queries, "query", "queries") + " per head, seed " + std::to_string(options.seed);
}

std::vector<AttentionErrors> compare_on_sample(const std::vector<SampledSequence>& sample, const Transform& key,
                                               const Transform& value, const std::vector<HistoryCodecs>& codecs,
                                               Windows windows, Backend& backend) {
  std::vector<AttentionErrors> sums;
  for (const auto& heads : errors_of_heads(hold_all(sample, key, value, backend), codecs, 1, windows)) {
    sums.push_back(heads.front());
  }
  return sums;
}

ClipScores score_clip_ratios(const std::vector<SampledSequence>& sample, const Transform& key, const Transform& value,
                             const HistoryCodecs& codecs, bool keys_per_head, Windows windows, Backend& backend) {
  const auto held = hold_all(sample, key, value, backend);
  const auto kv_heads = static_cast<int>(sample.front().k.shape[1]);
  const auto sweep = [&](const RowCodec& codec, const std::optional<HistoryCodec>& settled_key, Metric metric) {
    return scores_by(errors_of_heads(held, candidates(codec, settled_key), kv_heads, windows), metric);
  };
  ClipScores scores{.key = sweep(*codecs.key, std::nullopt, mean_kl), .value = {}};
  HistoryCodec key_codec = with_ratio(*codecs.key, best_clip_ratio(scores.key.layer));
  if (keys_per_head) key_codec.head_clip_ratios = best_clip_ratios(scores.key.heads);
  scores.value = sweep(*codecs.value, key_codec, output_rel_error);
  return scores;
}

double best_clip_ratio(const std::vector<double>& scores) {
  const double enough = *std::min_element(scores.begin(), scores.end()) * (1 + kClipSlack);
  const auto best = std::find_if(scores.begin(), scores.end(), [&](double score) { return !(score > enough); });
  return clip_candidates()[static_cast<std::size_t>(best - scores.begin())];
}

std::vector<double> best_clip_ratios(const std::vector<std::vector<double>>& heads) {
  std::vector<double> ratios;
  for (const std::vector<double>& scores : heads) ratios.push_back(best_clip_ratio(scores));
  return ratios;
}

}  // namespace oscar
