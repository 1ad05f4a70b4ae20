// SPDX-License-Identifier: MIT
#include "kernels/arguments.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>

#include "base/errors.hpp"
#include "kernels/backend.hpp"
#include "kernels/types.hpp"

namespace oscar {

std::string_view name_of(Grid grid) { return grid == Grid::kLloydMax ? "lloyd-max" : "minmax"; }

Grid grid_from_name(std::string_view name) {
  for (const Grid grid : {Grid::kMinMax, Grid::kLloydMax}) {
    if (name == name_of(grid)) return grid;
  }
  throw UsageError("unknown codec \"" + std::string(name) + "\"", "--codec", "use minmax or lloyd-max");
}

RowCodec HistoryCodec::of_head(int kv_head) const {
  RowCodec codec = *this;
  if (!head_clip_ratios.empty()) codec.clip_ratio = head_clip_ratios.at(static_cast<std::size_t>(kv_head));
  return codec;
}

void AttentionErrors::add(const AttentionErrors& other) {
  softmax_kl += other.softmax_kl;
  output_error += other.output_error;
  output_norm += other.output_norm;
  output_cosine += other.output_cosine;
  logit_error += other.logit_error;
  logit_norm += other.logit_norm;
  needle_mass += other.needle_mass;
  needle_kept += other.needle_kept;
  queries += other.queries;
  query_kl.insert(query_kl.end(), other.query_kl.begin(), other.query_kl.end());
}

void check_codec(const RowCodec& codec) {
  if (codec.levels < 2 || codec.levels > 256) {
    throw UsageError("cannot quantise to " + std::to_string(codec.levels) + " levels", "levels", "choose 2 to 256");
  }
  if (codec.grid == Grid::kLloydMax && codec.levels != 4) {
    throw UsageError("codec lloyd-max has 4 levels, not " + std::to_string(codec.levels), "levels",
                     "use minmax for other numbers of levels");
  }
  if (!is_activation_dtype(codec.scale_dtype)) {
    throw UsageError("scales cannot be " + std::string(name_of(codec.scale_dtype)), "--scale-dtype",
                     "use float32, float16 or bfloat16");
  }
}

int checked_group_size(const RowCodec& codec, int head_dim) {
  const int group_size = codec.group_size == 0 ? head_dim : codec.group_size;
  if (group_size < 1 || group_size > head_dim || head_dim % group_size != 0) {
    throw UsageError(
        "group size " + std::to_string(group_size) + " does not divide head_dim " + std::to_string(head_dim),
        "--group-size", "choose a divisor of head_dim, or 0 for the whole head");
  }
  check_codec(codec);
  return group_size;
}

void check_heads(const HistoryCodec& codec, int kv_heads) {
  const std::size_t ratios = codec.head_clip_ratios.size();
  OSCAR_CHECK(ratios == 0 || ratios == static_cast<std::size_t>(kv_heads));
  OSCAR_CHECK(codec.coded == nullptr || codec.coded->size() == static_cast<std::size_t>(kv_heads));
}

int clip_rank(double clip_ratio, int head_dim) {
  return std::min(static_cast<int>(clip_ratio * head_dim), head_dim - 1);
}

std::vector<std::int64_t> resolve_positions(std::span<const std::int64_t> given, std::int64_t queries) {
  if (!given.empty()) return {given.begin(), given.end()};
  std::vector<std::int64_t> positions(static_cast<std::size_t>(queries));
  std::iota(positions.begin(), positions.end(), std::int64_t{0});
  return positions;
}

void check_positions(std::span<const std::int64_t> positions, std::int64_t queries, std::int64_t keys) {
  OSCAR_CHECK(static_cast<std::int64_t>(positions.size()) == queries);
  OSCAR_CHECK(std::is_sorted(positions.begin(), positions.end()));
  OSCAR_CHECK(positions.empty() || (positions.front() >= 0 && positions.back() < keys));
}

std::size_t CodecChoice::decoding() const {
  return codecs.size() - static_cast<std::size_t>(std::count(codecs.begin(), codecs.end(), std::nullopt));
}

CodecChoice choose_codecs(std::span<const HistoryCodecs> candidates, std::optional<HistoryCodec> HistoryCodecs::*side) {
  CodecChoice choice;
  for (const HistoryCodecs& candidate : candidates) {
    const auto found = std::find(choice.codecs.begin(), choice.codecs.end(), candidate.*side);
    choice.of_candidate.push_back(static_cast<std::size_t>(found - choice.codecs.begin()));
    if (found == choice.codecs.end()) choice.codecs.push_back(candidate.*side);
  }
  return choice;
}

void check_sequence(const SequenceInput& input) {
  const HeadsView &q = input.qkv.q, &k = input.qkv.k, &v = input.qkv.v;
  OSCAR_CHECK(k.num_tokens == v.num_tokens && k.num_heads == v.num_heads && k.num_heads > 0);
  OSCAR_CHECK(q.num_heads % k.num_heads == 0 && q.head_dim == k.head_dim);
  check_positions(resolve_positions(input.query_positions, q.num_tokens), q.num_tokens, k.num_tokens);
  const auto fits = [](const Transform* transform, const HeadsView& rows) {
    if (transform == nullptr) return true;
    const auto stack_fits = [&](const MatrixStack& stack) {
      return stack.dim == rows.head_dim && (stack.count == 1 || stack.count == rows.num_heads);
    };
    const auto dim = static_cast<std::size_t>(rows.head_dim), size = transform->mean.size();
    const bool mean_fits = size == 0 || size == dim || size == dim * static_cast<std::size_t>(rows.num_heads);
    return stack_fits(transform->rotation) && stack_fits(transform->read()) && mean_fits;
  };
  OSCAR_CHECK(fits(input.key, k) && fits(input.value, v));
  const auto decoded_fits = [](const HeadsView& decoded, const HeadsView& rows, const Transform* transform) {
    return decoded.data == nullptr ||
           (transform == nullptr && decoded.dtype == DType::kF32 && decoded.num_tokens == rows.num_tokens &&
            decoded.num_heads == rows.num_heads && decoded.head_dim == rows.head_dim);
  };
  OSCAR_CHECK(decoded_fits(input.decoded_k, k, input.key) && decoded_fits(input.decoded_v, v, input.value));
  if (input.scores == nullptr) return;
  const std::size_t sinks = input.scores->sinks.size();
  OSCAR_CHECK(sinks == 0 || sinks == static_cast<std::size_t>(q.num_heads));
}

void check_finite(std::span<const double> symmetric) {
  if (std::all_of(symmetric.begin(), symmetric.end(), [](double v) { return std::isfinite(v); })) return;
  throw NumericalError("an eigenproblem has entries that are not finite", "", "check the dump for NaN and Inf");
}

void add_symmetric(std::span<const double> partial, std::span<double> gram, int dim) {
  for (int i = 0; i < dim; ++i) {
    for (int j = i; j < dim; ++j) {
      const double value = partial[static_cast<std::size_t>(i) * dim + j];
      gram[static_cast<std::size_t>(i) * dim + j] += value;
      if (j != i) gram[static_cast<std::size_t>(j) * dim + i] += value;
    }
  }
}

std::vector<std::vector<std::vector<AttentionErrors>>> Backend::compare(std::span<const ComparedSequence> sequences) {
  std::vector<std::vector<std::vector<AttentionErrors>>> errors;
  for (const auto& [sequence, candidates, windows] : sequences) {
    errors.push_back(sequence->compare(candidates, windows));
  }
  return errors;
}

}  // namespace oscar
