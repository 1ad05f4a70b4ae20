// SPDX-License-Identifier: MIT
// What engines offer.
//   TurboQuant as in vLLM: keys times a Hadamard, divided by their norms, to the nearest level of N(0, 1 / d), times
//     norm / |levels|; values by rows as they are, half a step up.
//   llama.cpp: blocks of 32 channels with fp16 scales; codes are found with fp32 scales.
//     q8_0: d = max |x| / 127,  q = x / d to the nearest, ties away from 0,  x^ = q d
//     q4_0: d = m / -8, m the value of largest |x|,  q = min(15, int(x / d + 8 + 1/2)),  x^ = (q - 8) d
//     _rot: as since April 2026, where 64 divides head_dim: keys times a Hadamard of the largest power of two that
//     does, values times blocks of 64.
//   fp8:   e4m3(x), the engines' default scale of 1
//   fp8_scaled: s e4m3(x / s), s = max |x| / 448 of a layer's keys or values: here of the history
//   int8_per_token_head: s round(x / s), ties away from 0, s = max |x| / 127 of each row
//   nvfp4: blocks of 16: s = e4m3(max |x| / (6 g)), x^ = s g e2m1(x / (s g)); g fp32, of the layer: here of the
//     history, such that the largest s is 448
#include <cmath>

#include "measure/peers/baselines.hpp"
#include "measure/peers/quantizers.hpp"

namespace oscar::methods {
namespace {

SideMethod turboquant_keys(int bits) {
  const auto quantize = [book = gaussian_codebook(bits)](std::span<float> row) {
    const float norm = norm_of(row), root = std::sqrt(static_cast<float>(row.size()));
    if (norm == 0) return;
    for (float& x : row) x = x / norm * root;
    book.take_nearest(row);
    for (float& x : row) x /= root;
    const float factor = round_to_f16(norm) / norm_of(row);
    for (float& x : row) x *= factor;
  };
  return rotated(by_token(quantize, 0, bits_by_token(bits, 1)));
}

constexpr int kGgmlBlock = 32, kNvfp4Block = 16;

float of_largest_magnitude(std::span<const float> x) {
  float largest = 0;
  for (const float value : x) largest = std::abs(value) > std::abs(largest) ? value : largest;
  return largest;
}

void q8_0(std::span<float> block) {
  const float d = std::abs(of_largest_magnitude(block)) / 127;
  if (d == 0) return;
  const float read_d = round_to_f16(d);
  for (float& x : block) x = std::round(x / d) * read_d;
}

/// The value of largest magnitude gets the end of the range that has one code more.
void q4_0(std::span<float> block) {
  const float d = of_largest_magnitude(block) / -8;
  if (d == 0) return;
  const float read_d = round_to_f16(d);
  for (float& x : block) x = (std::min(15.0F, std::trunc(x / d + 8.5F)) - 8) * read_d;
}

SideMethod rotated_as_llama_cpp(const SideMethod& side, int order) {
  const SideMethod turned = rotated(side, order);
  return {[=](const History& history) { (history.dim % 64 == 0 ? turned : side).reconstruct(history); }, side.bits};
}

void fp8(std::span<float> row) {
  for (float& x : row) x = round_to_e4m3(x);
}

void scaled_fp8(std::span<float> values) {
  const float scale = largest_magnitude(values) / kLargestE4M3;
  for (float& x : values) x = scale == 0 ? 0 : round_to_e4m3(x / scale) * scale;
}

void int8(std::span<float> row) {
  const float scale = largest_magnitude(row) / 127;
  for (float& x : row) x = scale == 0 ? 0 : std::round(x / scale) * scale;
}

void nvfp4(const History& history) {
  const float global = largest_magnitude(history.rows) / (kLargestE2M1 * kLargestE4M3);
  if (global == 0) return;
  along_rows(by_head(history), kNvfp4Block, [global](std::span<float> block) {
    const float scale = round_to_e4m3(largest_magnitude(block) / (kLargestE2M1 * global)) * global;
    for (float& x : block) x = scale == 0 ? 0 : round_to_e2m1(x / scale) * scale;
  });
}

}  // namespace

std::vector<Peer> engine_formats() {
  std::vector<Peer> formats{{.name = "turboquant_k3v3",
                             .description = "TurboQuant as in vLLM, every layer quantised: 3-bit keys and values",
                             .key = turboquant_keys(3),
                             .value = affine_by_token({.levels = 8, .rounding = Rounding::kUp}, 0)}};
  const auto add = [&](Peer format, const SideMethod& key, const SideMethod& value) {
    format.key = key, format.value = value;
    formats.push_back(std::move(format));
  };
  for (const auto& [name, side] : {std::pair{"q8_0", by_token(q8_0, kGgmlBlock, fixed_bits(8.5))},
                                   std::pair{"q4_0", by_token(q4_0, kGgmlBlock, fixed_bits(4.5))}}) {
    const std::string type = name, what = "llama.cpp's " + type;
    add({.name = type, .description = what, .llama_cpp = type}, side, side);
    add({.name = type + "_rot", .description = what + " with its attention rotation", .llama_cpp = type},
        rotated_as_llama_cpp(side, 0), rotated_as_llama_cpp(side, 64));
  }
  const auto add_vllm = [&](const char* name, const char* type, const char* what, const SideMethod& side) {
    add({.name = name, .description = what, .vllm = type}, side, side);
  };
  const auto whole = [](const History& history) { scaled_fp8(history.rows); };
  const Bits with_scale = [](const KvShape& shape) { return StoredBits{8 + 32.0 / shape.head_dim, 0}; };
  add_vllm("fp8", "fp8", "FP8 e4m3, scale 1", by_token(fp8, 0, fixed_bits(8)));
  add_vllm("fp8_scaled", "fp8", "FP8 e4m3; a scale for a layer's keys and one for its values, of the history itself",
           {whole, fixed_bits(8)});
  add_vllm("int8_per_token_head", "int8_per_token_head", "INT8, a scale for each row", by_token(int8, 0, with_scale));
  add_vllm("nvfp4", "nvfp4", "NVFP4, blocks of 16; global scale of the history itself", {nvfp4, fixed_bits(4.5)});
  return formats;
}

}  // namespace oscar::methods
