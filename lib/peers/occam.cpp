// SPDX-License-Identifier: MIT
// OScaR, "Occam's razor" (arXiv 2605.19660; no relation of OSCAR): keys times a Hadamard per head, each token divided
// by its norm over all KV heads, INT2 per channel over 32 tokens, times the norm again; values times a Hadamard, INT2
// per token over 32 channels. Whole zero points, q = clamp(even(x / s + z)); rows are stored between the steps.
// quarot_kivi is what its authors run as QuaRot: the same without norms.
#include "peers/affine.hpp"
#include "peers/families.hpp"

namespace oscar::methods {
namespace {

constexpr int kOccamGroup = 32;
constexpr Affine kAffine{.zero = ZeroPoint::kIntegerShifted};

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

}  // namespace

Family occam_methods() {
  const SideMethod keys = affine_by_channel(kAffine, kOccamGroup), values = affine_by_token(kAffine, kOccamGroup);
  return {{"occam",
           "OScaR (Occam's razor): Hadamard, token norms, KIVI's axes, groups of 32",
           {0, 128},
           rotated(by_direction(keys)),
           rotated(values)},
          {"quarot_kivi",
           "OScaR's QuaRot-INT2: Hadamard, KIVI's axes, groups of 32",
           {0, 128},
           rotated(keys),
           rotated(values)}};
}

}  // namespace oscar::methods
