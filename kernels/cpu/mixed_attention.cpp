// SPDX-License-Identifier: MIT
#include "kernels/cpu/mixed_attention.hpp"

#include "base/check.hpp"
#include "kernels/arguments.hpp"

namespace oscar::cpu {

std::vector<std::int64_t> resolve_positions(const MixedAttention& mixed) {
  return oscar::resolve_positions(mixed.query_positions, mixed.q.num_tokens);
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
  check_positions(resolve_positions(mixed), mixed.q.num_tokens, mixed.window_k.num_tokens);
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

}  // namespace oscar::cpu
