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
//
// KIVI (arXiv 2402.02750): keys per channel over groups of G tokens, values per token over groups of G channels,
// q = even((x - min) / s), s and min fp16. Kitty (arXiv 2511.18643): KIVI's axes with G = 128; on each page of 128
// tokens the channels of a head with the largest mean |k| get 4 bits.
// Engines leave up to a group of keys unquantised; here the last group of a history is quantised at the length it has.
//
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

#include "base/errors.hpp"
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
                                              history.context.precision, history.rows);
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

constexpr std::size_t kPage = 128;

constexpr double kBoosted = 0.125;  // of the channels

Peer kivi(int group) {
  return {.name = "kivi_g" + std::to_string(group),
          .description = "KIVI-2, groups of " + std::to_string(group),
          .windows = {0, 128},
          .key = affine_by_channel({}, group),
          .value = affine_by_token({}, group)};
}

std::size_t boosted_channels(int dim) { return static_cast<std::size_t>(dim * kBoosted + 1e-6); }

/// Of the values below each other in columns [begin, end): the columns with the largest sums of magnitudes.
std::vector<std::size_t> largest_columns(Matrix m, std::size_t begin, std::size_t end, std::size_t count) {
  std::vector<double> sums(end - begin);
  for (std::size_t i = 0; i < m.rows; ++i) {
    for (std::size_t j = begin; j < end; ++j) sums[j - begin] -= std::abs(m.at(i, j));
  }
  std::vector<std::size_t> order = sorted_order(sums);
  order.resize(count);
  return order;
}

void boost_page(Matrix page, std::size_t dim) {
  constexpr float kSmallestRange = 1e-4F;
  std::vector<int> levels(page.cols, 4);
  for (std::size_t head = 0; head < page.cols; head += dim) {
    for (const std::size_t j : largest_columns(page, head, head + dim, boosted_channels(static_cast<int>(dim)))) {
      levels[head + j] = 16;
    }
  }
  along_columns(page, page.rows, [&](std::span<float> values, std::size_t j) {
    Affine{.levels = levels[j], .smallest_scale = kSmallestRange / static_cast<float>(levels[j] - 1)}(values);
  });
}

void quantize_kitty(const History& history) {
  const Matrix all = by_token(history);
  parallel_for((all.rows + kPage - 1) / kPage, [&](std::size_t page) {
    const std::size_t begin = page * kPage, rows = std::min(kPage, all.rows - begin);
    boost_page({all.data.subspan(begin * all.cols, rows * all.cols), rows, all.cols},
               static_cast<std::size_t>(history.dim));
  });
}

/// A page also stores a byte for each channel: where it went.
StoredBits kitty_bits(const KvShape& shape) {
  const auto boosted = static_cast<double>(boosted_channels(shape.head_dim));
  return {2 + 2 * boosted / shape.head_dim + 8.0 / kPage, 2.0 / kPage};
}

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

std::vector<Peer> kivi_methods() {
  return {kivi(32),
          kivi(128),
          {.name = "kitty",
           .description = "Kitty: KIVI-2 with groups of 128, 12.5 % of the key channels at 4 bits",
           .windows = {32, 128},
           .key = {quantize_kitty, kitty_bits},
           .value = affine_by_token({.smallest_scale = 1e-4F / 3}, 128)}};
}

std::vector<Peer> engine_formats() {
  std::vector<Peer> formats{{.name = "turboquant_k3v3",
                             .description = "TurboQuant as in vLLM, every layer quantised: 3-bit keys and values",
                             .key = turboquant_keys(3),
                             .value = affine_by_token({.levels = 8, .rounding = Rounding::kUp}, 0)}};
  const auto add = [&](Peer format, const SideMethod& key, const SideMethod& value) {
    format.key = key, format.value = value;
    formats.push_back(std::move(format));
  };
  const auto with_scales = [](double codes, double scale, int group) -> Bits {
    return [=](const KvShape& shape) {
      return StoredBits{codes + scale * groups_per_element(shape.head_dim, group), 0};
    };
  };
  for (const auto& [name, side] : {std::pair{"q8_0", by_token(q8_0, kGgmlBlock, with_scales(8, 16, kGgmlBlock))},
                                   std::pair{"q4_0", by_token(q4_0, kGgmlBlock, with_scales(4, 16, kGgmlBlock))}}) {
    const std::string type = name, what = "llama.cpp's " + type;
    add({.name = type, .description = what, .llama_cpp = type}, side, side);
    add({.name = type + "_rot", .description = what + " with its attention rotation", .llama_cpp = type},
        rotated_as_llama_cpp(side, 0), rotated_as_llama_cpp(side, 64));
  }
  const auto add_vllm = [&](const char* name, const char* type, const char* what, const SideMethod& side) {
    add({.name = name, .description = what, .vllm = type}, side, side);
  };
  const auto whole = [](const History& history) { scaled_fp8(history.rows); };
  add_vllm("fp8", "fp8", "FP8 e4m3, scale 1", by_token(fp8, 0, fixed_bits(8)));
  add_vllm("fp8_scaled", "fp8", "FP8 e4m3; a scale for a layer's keys and one for its values, of the history itself",
           {whole, fixed_bits(8)});
  add_vllm("int8_per_token_head", "int8_per_token_head", "INT8, a scale for each row",
           by_token(int8, 0, with_scales(8, 32, 0)));
  add_vllm("nvfp4", "nvfp4", "NVFP4, blocks of 16; global scale of the history itself", {nvfp4, with_scales(4, 8, 16)});
  return formats;
}

}  // namespace oscar::methods
