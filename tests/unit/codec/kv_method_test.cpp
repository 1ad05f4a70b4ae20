// SPDX-License-Identifier: MIT
#include "codec/kv_method.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "support/support.hpp"

namespace oscar {

TEST_CASE("bits per element of INT2 with one group of 128") {
  const KvMethod naive = make_baseline("naive", {{0, 128}}, {64, 256}, 0);
  const BitsPerElement bits = bits_per_element(naive, 131072);
  CHECK(bits.fp16_params == 2.25);
  CHECK(bits.fp32_params == 2.5);
  CHECK(bits.fp16_at_context == doctest::Approx(2.25 + 320.0 / 131072 * 13.75));
  CHECK(bits.fp32_at_context == doctest::Approx(2.533).epsilon(1e-3));
  // A context that fits the windows is not quantised at all.
  CHECK(bits_per_element(naive, 200).fp16_at_context == 16);
}

TEST_CASE("bits follow groups, levels and what is quantised") {
  CHECK(bits_per_element(make_baseline("naive", {{0, 128}}, {}, 32), 4096).fp16_params == 3.0);
  CHECK(bits_per_element(make_baseline("bf16", {{0, 128}}, {}, 0), 4096).fp32_at_context == 16);
  KvMethod method = make_baseline("naive", {{0, 64}, {1, 128}}, {}, 0);
  CHECK(bits_per_element(method, 4096).fp16_params == (2.5 + 2.25) / 2);
  method.layers[1].key.codec.levels = 8;
  method.layers[1].value.codec.levels = 5;
  // Rows of 128: 8 levels take 48 bytes, 5 levels 43 words of 7 bits, that is 38 bytes.
  CHECK(bits_per_element(method, 4096).fp16_params == (2 * 2.5 + 3.25 + 2.375 + 0.25) / 4);
  method.layers[1].value.quantized = false;
  CHECK(bits_per_element(method, 4096).fp16_params == (2 * 2.5 + 3.25 + 16) / 4);
}

TEST_CASE("codes that share a nibble take 4 bits a pair where rows of their own would take more") {
  KvMethod method = make_baseline("naive", {{0, 64}}, {}, 0);
  method.layers[0].key.codec.levels = 5;
  method.layers[0].value.codec.levels = 3;
  // Apart 22 words of 7 bits (20 bytes) and 13 words of 8: 33 bytes; nibbles: 32.
  CHECK(bits_per_element(method, 4096).fp16_params == 2 + 0.5);
  method.layers[0].key.codec.levels = 3;  // 13 bytes twice
  CHECK(bits_per_element(method, 4096).fp16_params == 1.625 + 0.5);
}

TEST_CASE("the Hadamard baseline is orthogonal, symmetric and made of equal entries inside its blocks") {
  for (const int dim : {1, 8, 96, 128}) {
    const MatrixStack h = hadamard_baseline_matrix(dim);
    const auto d = static_cast<std::size_t>(dim);
    double worst = 0;
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        double dot = 0;
        for (std::size_t k = 0; k < d; ++k) dot += h.data[k * d + i] * h.data[k * d + j];
        worst = std::max(worst, std::abs(dot - (i == j ? 1.0 : 0.0)));
        CHECK(h.data[i * d + j] == h.data[j * d + i]);
      }
    }
    CHECK(worst < 1e-14);
  }
  const MatrixStack h = hadamard_baseline_matrix(96);
  CHECK(h.data[0] == 1 / std::sqrt(32.0));
  CHECK(h.data[95] == 0);
}

TEST_CASE("baselines differ as their names say") {
  const std::vector<LayerShape> layers{{3, 16}, {7, 16}};
  CHECK_FALSE(make_baseline("bf16", layers, {}, 0).layer(7).key.quantized);
  CHECK(make_baseline("naive", layers, {}, 0).layer(3).value.transform == nullptr);
  const KvMethod clipped = make_baseline("hadamard_clip", layers, {}, 0);
  CHECK(clipped.layer(3).key.codec.clip_ratio == 0.96);
  CHECK(clipped.layer(3).value.codec.clip_ratio == 0.92);
  CHECK(clipped.layer(3).key.transform == clipped.layer(7).value.transform);
  CHECK(make_baseline("hadamard", layers, {}, 0).layer(3).key.codec.clip_ratio == 0);
  CHECK_ERROR(clipped.layer(5), DataError, "no layer 5");
  CHECK_ERROR(make_baseline("best", layers, {}, 0), UsageError, "bf16, naive, hadamard, hadamard_clip");
}

}  // namespace oscar
