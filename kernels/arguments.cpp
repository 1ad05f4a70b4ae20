// SPDX-License-Identifier: MIT
#include "kernels/arguments.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>

#include "base/check.hpp"
#include "base/errors.hpp"

namespace oscar {

int checked_group_size(const RowCodec& codec, int head_dim) {
  const int group_size = codec.group_size == 0 ? head_dim : codec.group_size;
  if (group_size < 1 || group_size > head_dim || head_dim % group_size != 0) {
    throw UsageError(
        "group size " + std::to_string(group_size) + " does not divide head_dim " + std::to_string(head_dim),
        "--group-size", "choose a divisor of head_dim, or 0 for the whole head");
  }
  if (codec.levels < 2 || codec.levels > 256) {
    throw UsageError("cannot quantise to " + std::to_string(codec.levels) + " levels", "--levels", "choose 2 to 256");
  }
  return group_size;
}

int clip_rank(double clip_ratio, int head_dim) {
  return std::min(static_cast<int>(clip_ratio * head_dim), head_dim - 1);
}

std::vector<std::int64_t> resolve_positions(const MixedAttention& mixed) {
  if (!mixed.query_positions.empty()) return {mixed.query_positions.begin(), mixed.query_positions.end()};
  std::vector<std::int64_t> positions(static_cast<std::size_t>(mixed.q.num_tokens));
  std::iota(positions.begin(), positions.end(), std::int64_t{0});
  return positions;
}

void check_mixed(const MixedAttention& mixed) {
  const auto same_shape = [](const HeadsView& a, const HeadsView& b) {
    return a.num_tokens == b.num_tokens && a.num_heads == b.num_heads && a.head_dim == b.head_dim;
  };
  OSCAR_CHECK(same_shape(mixed.window_k, mixed.history_k) && same_shape(mixed.window_v, mixed.history_v));
  OSCAR_CHECK(mixed.window_k.num_tokens == mixed.window_v.num_tokens);
  OSCAR_CHECK(mixed.window_k.num_heads == mixed.window_v.num_heads && mixed.window_k.num_heads > 0);
  OSCAR_CHECK(mixed.q.num_heads % mixed.window_k.num_heads == 0 && mixed.q.head_dim == mixed.window_k.head_dim);
  OSCAR_CHECK(mixed.windows.sink >= 0 && mixed.windows.recent >= 0);
  const std::vector<std::int64_t> positions = resolve_positions(mixed);
  OSCAR_CHECK(static_cast<std::int64_t>(positions.size()) == mixed.q.num_tokens);
  OSCAR_CHECK(std::is_sorted(positions.begin(), positions.end()));
  OSCAR_CHECK(positions.empty() || (positions.front() >= 0 && positions.back() < mixed.window_k.num_tokens));
  const MatrixStack* back = mixed.native_from_rotated;
  OSCAR_CHECK(back == nullptr ||
              (back->dim == mixed.window_v.head_dim && (back->count == 1 || back->count == mixed.window_v.num_heads)));
}

void check_exact(const QkvView& exact, const MixedAttention& mixed) {
  OSCAR_CHECK(exact.q.num_tokens == mixed.q.num_tokens && exact.q.num_heads == mixed.q.num_heads);
  OSCAR_CHECK(exact.k.num_tokens == mixed.window_k.num_tokens && exact.k.num_heads == mixed.window_k.num_heads);
  OSCAR_CHECK(exact.v.num_tokens == mixed.window_v.num_tokens && exact.v.num_heads == mixed.window_v.num_heads);
  OSCAR_CHECK(exact.q.head_dim == exact.k.head_dim && exact.v.head_dim == mixed.window_v.head_dim);
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

}  // namespace oscar
