// SPDX-License-Identifier: MIT
// Methods that turn rows by a Hadamard and do more than a row codec can.
//   QuaRot (arXiv 2404.00456) with 2 bits instead of its 4: Hadamard per head on keys after RoPE and on values, one
//     group per (token, head) with a whole zero point that is stored like a code. The range of keys contains 0, that of
//     values need not. What OSCAR's authors call QuaRot-INT2 is a Hadamard before OSCAR's own codec: "hadamard".
//   RotateKV: keys before RoPE, Hadamards over four heads, channels in the order of their sums, groups of 128.
//   OScaR, "Occam's razor" (arXiv 2605.19660; no relation of OSCAR): keys times a Hadamard per head, each token divided
//     by its norm over all KV heads, INT2 per channel over 32 tokens, times the norm again; values times a Hadamard,
//     INT2 per token over 32 channels. Whole zero points, q = clamp(even(x / s + z)); rows are stored between the
//     steps.
//   OptR (arXiv 2608.02691) as far as Q, K and V go: the mean key of a head is subtracted before and added after a
//     Hadamard and OSCAR's clipped INT2, as published for QuaRot-INT2 + OptR. Softmax does not see a shift of all keys,
//     so a server need not add it back. The mean comes from calibration: here from the history itself, which favours
//     it. Its refined rotations are not here: 80 steps of Adam on calibration queries and the output projection, which
//     a history of keys does not have.
#include "base/check.hpp"
#include "kernels/backend.hpp"
#include "measure/peers/baselines.hpp"
#include "measure/peers/quantizers.hpp"

namespace oscar::methods {
namespace {

SideMethod quarot_side(bool include_zero) {
  const Affine affine{.zero = ZeroPoint::kInteger, .include_zero = include_zero};
  return rotated(by_token(affine, 0, [](const KvShape& shape) {
    return StoredBits{2 + 2.0 / shape.head_dim, 1.0 / shape.head_dim};
  }));
}

constexpr int kHeadsPerRotation = 4, kRotateKvGroup = 128;

void quantize_rotatekv(const History& history) {
  const Matrix m = by_token(history);
  const auto heads_together = static_cast<std::size_t>(kHeadsPerRotation) * static_cast<std::size_t>(history.dim);
  hadamard(m, heads_together);
  const std::vector<std::size_t> order = sorted_order(column_sums(m));
  take_columns(m, order);
  along_rows(m, kRotateKvGroup, Affine{.zero = ZeroPoint::kInteger});
  put_columns(m, order);
  hadamard(m, heads_together);
}

StoredBits rotatekv_bits(const KvShape& shape) {
  return {2, 2 * groups_per_element(shape.head_dim * shape.num_kv_heads, kRotateKvGroup)};
}

constexpr int kOccamGroup = 32;
constexpr Affine kOccamAffine{.zero = ZeroPoint::kIntegerShifted};

SideMethod by_direction(const SideMethod& side) {
  return {[=](const History& history) {
            const Matrix tokens = by_token(history);
            std::vector<float> norms(tokens.rows);
            const auto norm_at = [&](std::span<const float> row) -> float& {
              return norms[static_cast<std::size_t>(row.data() - tokens.data.data()) / tokens.cols];
            };
            for_each_row(tokens, [&](std::span<float> row) {
              const float norm = norm_of(row);
              norm_at(row) = norm > 0 ? norm : 1;
              for (float& x : row) x /= norm_at(row);
            });
            history.store();
            side.reconstruct(history);
            for_each_row(tokens, [&](std::span<float> row) {
              for (float& x : row) x *= norm_at(row);
            });
          },
          [=](const KvShape& shape) {
            // The norm is fp32 in any case.
            const StoredBits bits = side.bits(shape);
            return StoredBits{bits.codes + 32.0 / (shape.head_dim * shape.num_kv_heads), bits.parameters};
          }};
}

SideMethod clipped_rows(double clip_ratio) {
  return {[=](const History& history) {
            OSCAR_CHECK(history.context.backend != nullptr);
            history.context.backend->quantize(history.rows, history.dim, RowCodec{.clip_ratio = clip_ratio},
                                              history.context.precision, history.rows, nullptr);
          },
          bits_by_token(2, 2)};
}

SideMethod centred(const SideMethod& side) {
  return {[=](const History& history) {
            const std::vector<double> sums = column_sums(by_token(history));
            const auto add_means = [&](double factor) {
              for_each_row(by_token(history), [&](std::span<float> row) {
                for (std::size_t j = 0; j < row.size(); ++j) row[j] += static_cast<float>(factor * sums[j]);
              });
            };
            const double per_token = 1 / static_cast<double>(history.tokens);
            add_means(-per_token);
            side.reconstruct(history);
            add_means(per_token);
          },
          side.bits};
}

}  // namespace

std::vector<Peer> rotated_methods() {
  return {{.name = "quarot",
           .description = "QuaRot at 2 bits: Hadamard, whole zero points, clip 1",
           .key = quarot_side(true),
           .value = quarot_side(false)},
          {.name = "rotatekv",
           .description = "RotateKV at 2 bits; channels ordered by the history itself, the first 20 tokens protected",
           .windows = {20, 0},
           .key = before_rope({quantize_rotatekv, rotatekv_bits}),
           .value = rotated(affine_by_token({.zero = ZeroPoint::kInteger}, kRotateKvGroup)),
           .before_rope = true},
          {.name = "occam",
           .description = "OScaR (Occam's razor): Hadamard, token norms, KIVI's axes, groups of 32",
           .windows = {0, 128},
           .key = rotated(by_direction(affine_by_channel(kOccamAffine, kOccamGroup))),
           .value = rotated(affine_by_token(kOccamAffine, kOccamGroup))},
          {.name = "optr_centred",
           .description = "OptR's centred keys, Hadamard, clipped INT2; means of the history itself, rotations not "
                          "refined, for want of calibration queries and W_O",
           .windows = {64, 256},
           .key = centred(rotated(clipped_rows(kPublishedKeyClip))),
           .value = rotated(clipped_rows(kPublishedValueClip))}};
}

}  // namespace oscar::methods
