// SPDX-License-Identifier: MIT
#include "kernels/cpu/mixed_attention.hpp"

#include "base/check.hpp"
#include "kernels/arguments.hpp"

namespace oscar::cpu {
namespace {

bool fits(const std::optional<HistoryRows>& history, const HeadsView& stored) {
  if (!history) return true;
  const auto same = [&](std::int64_t tokens, int heads, int dim) {
    return tokens == stored.num_tokens && heads == stored.num_heads && dim == stored.head_dim;
  };
  const HeadsView& decoded = history->decoded;
  return history->packed != nullptr ? same(history->packed->tokens(), history->packed->heads(), history->packed->dim())
                                    : same(decoded.num_tokens, decoded.num_heads, decoded.head_dim);
}

}  // namespace

std::vector<std::int64_t> resolve_positions(const MixedAttention& mixed) {
  return oscar::resolve_positions(mixed.query_positions, mixed.q.num_tokens);
}

void check_mixed(const MixedAttention& mixed) {
  OSCAR_CHECK(fits(mixed.history_k, mixed.window_k) && fits(mixed.history_v, mixed.window_v));
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
