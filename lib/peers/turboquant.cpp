// SPDX-License-Identifier: MIT
// TurboQuant (arXiv 2504.19874). As in vLLM, which is what OSCAR compares with: plain Hadamard, no random signs, no
// QJL.
//   keys:    n = |k|, codes of sqrt(d) k / n H by Lloyd-Max levels c of N(0, 1); k^ = n c / |c| H ("norm correction").
//            n is fp16
//   values:  not rotated; min/max per row, q = int((v - min) / s + 1/2), s and min fp16
// The engine's presets keep the first and last two layers in bfloat16 ("_mp"); papers compare without that.
// turboquant_mse2..4 are the paper's TQ_mse on both sides: no norm correction, and a Hadamard for its random rotation.
#include <cmath>

#include "peers/affine.hpp"
#include "peers/codebook.hpp"
#include "peers/families.hpp"

namespace oscar::methods {
namespace {

SideMethod by_direction(int bits, bool norm_correction) {
  const auto quantize = [=, &book = gaussian_codebook(bits)](std::span<float> row) {
    const float norm = norm_of(row), root = std::sqrt(static_cast<float>(row.size()));
    if (norm == 0) return;
    for (float& x : row) x = x / norm * root;
    book.take_nearest(row);
    for (float& x : row) x /= root;
    const float length = norm_correction ? norm_of(row) : 1;
    const float factor = round_to(NumberFormat::kF16, norm) / length;
    for (float& x : row) x *= factor;
  };
  return rotated(by_token(quantize, 0, bits_by_token(bits, 1)));
}

SideMethod by_row(int bits) { return affine_by_token({.levels = 1 << bits, .rounding = Rounding::kUp}, 0); }

}  // namespace

Family turboquant_methods() {
  const std::string engine = "TurboQuant as in vLLM, every layer quantised: ";
  Family family{{"turboquant_k3v3", engine + "3-bit keys and values", {0, 0}, by_direction(3, true), by_row(3)},
                {"turboquant_k3v4", engine + "3-bit keys, 4-bit values", {0, 0}, by_direction(3, true), by_row(4)},
                {"turboquant_4bit", engine + "4-bit keys and values", {0, 0}, by_direction(4, true), by_row(4)},
                {"turboquant_k8v4", engine + "FP8 keys, 4-bit values", {0, 0}, fp8_side(), by_row(4)}};
  SequenceMethod as_served = family.front();
  as_served.name += "_mp";
  as_served.summary = "TurboQuant as vLLM serves it: 3-bit keys and values, two layers at either end in bfloat16";
  as_served.exact_end_layers = 2;
  family.push_back(as_served);
  for (const int bits : {2, 3, 4}) {
    family.push_back({"turboquant_mse" + std::to_string(bits),
                      "TurboQuant's TQ_mse, with a Hadamard for its random rotation",
                      {0, 0},
                      by_direction(bits, false),
                      by_direction(bits, false)});
  }
  return family;
}

}  // namespace oscar::methods
