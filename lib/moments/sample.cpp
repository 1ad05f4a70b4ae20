// SPDX-License-Identifier: MIT
#include "moments/sample.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

/// A number in [0, bound), the same on every platform (std::uniform_int_distribution is not).
std::uint64_t draw(std::mt19937_64& random, std::uint64_t bound) { return random() % bound; }

/// Of one sequence: more where the windows would leave too little history.
std::int64_t most_tokens(Windows windows, const SampleOptions& options) {
  return std::max(options.max_sequence_tokens, windows.sink + windows.recent + options.max_sequence_tokens / 4);
}

/// Indices of the layer's sequences to sample, ascending.
std::set<std::size_t> choose_sequences(const std::vector<std::int64_t>& lengths, Windows windows,
                                       const SampleOptions& options) {
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

/// How many queries of each of `sequences` keep to the options.
std::int64_t queries_each(const SampleOptions& options, std::int64_t query_heads, std::size_t sequences) {
  return std::max<std::int64_t>(options.query_rows / (query_heads * static_cast<std::int64_t>(sequences)), 1);
}

/// Leaves `count` of the queries, spread evenly.
void thin_queries(SampledSequence& sequence, std::int64_t count) {
  const std::int64_t all = std::ssize(sequence.query_positions);
  if (all <= count) return;
  SampledSequence kept{Tensor(sequence.q.dtype, {count, sequence.q.shape[1], sequence.q.shape[2]}), {}, {}, {}};
  const std::size_t row_bytes = sequence.q.data.size() / static_cast<std::size_t>(all);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto from = static_cast<std::size_t>((2 * i + 1) * all / (2 * count));
    std::memcpy(kept.q.data.data() + static_cast<std::size_t>(i) * row_bytes, sequence.q.data.data() + from * row_bytes,
                row_bytes);
    kept.query_positions.push_back(sequence.query_positions[from]);
  }
  sequence.q = std::move(kept.q), sequence.query_positions = std::move(kept.query_positions);
}

/// Recipes without moments meet rows only here.
void require_usable(const SampledSequence& sequence, const QkvChunk& chunk) {
  for (const auto& [name, tensor] : {std::pair{"q", &sequence.q}, {"k", &sequence.k}, {"v", &sequence.v}}) {
    const HeadsView rows = heads_view(*tensor, name);
    std::vector<float> token(static_cast<std::size_t>(rows.num_heads) * rows.head_dim);
    bool all_zero = rows.num_tokens > 0;
    for (std::int64_t t = 0; t < rows.num_tokens; ++t) {
      rows.token_rows(t, 1, token.data());
      if (!std::ranges::all_of(token, [](float v) { return std::isfinite(v); })) {
        throw DataError(std::string(name) + " has NaN or Inf", chunk.where,
                        chunk.remedy + std::string(", or leave the sequence out"));
      }
      all_zero = all_zero && std::ranges::all_of(token, [](float v) { return v == 0; });
    }
    if (all_zero) {
      throw DataError(std::string("every ") + name + " of a sequence is zero", chunk.where, chunk.remedy);
    }
  }
}

}  // namespace

std::vector<SampledSequence> sample_layer(LayerStream& layer, Windows windows, const SampleOptions& options) {
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
      const std::int64_t queries = queries_each(options, chunk.view.q.num_heads, chosen.size());
      const std::int64_t tokens = std::min(range.size(), most_tokens(windows, options));
      sample.push_back(choose_rows(chunk.view, tokens, windows, queries, random));
      copy_sequence(chunk.view, range.begin, sample.back());
      require_usable(sample.back(), chunk);
    }
  }
  return sample;
}

std::vector<SampledSequence> join_samples(std::vector<std::vector<SampledSequence>> parts,
                                          const SampleOptions& options) {
  std::size_t longest = 0;
  for (const auto& part : parts) longest = std::max(longest, part.size());
  std::vector<SampledSequence> joined;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < longest; ++i) {
    for (auto& part : parts) {
      if (i >= part.size() || tokens >= options.sample_tokens) continue;
      tokens += part[i].k.shape[0];
      joined.push_back(std::move(part[i]));
    }
  }
  for (SampledSequence& each : joined) thin_queries(each, queries_each(options, each.q.shape[1], joined.size()));
  return joined;
}

std::string describe(std::span<const SampledSequence> sample, const SampleOptions& options) {
  if (sample.empty()) return "";
  std::int64_t keys = 0;
  std::size_t queries = 0;
  for (const SampledSequence& sequence : sample) {
    keys += sequence.k.shape[0];
    queries += sequence.query_positions.size();
  }
  return plural(keys, "key") + " in " + plural(sample.size(), "sequence") + ", " + plural(queries, "query", "queries") +
         " per head, seed " + std::to_string(options.seed);
}

}  // namespace oscar
