// SPDX-License-Identifier: MIT
#include "measure/kv_method.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/backend.hpp"
#include "measure/peers/baselines.hpp"
#include "set/set.hpp"
#include "support/matrices.hpp"
#include "support/support.hpp"
#include "unit/kernels/gaussian.hpp"

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
  method.layers[1].value.codec.levels = 16;
  CHECK(bits_per_element(method, 4096).fp16_params == (2 * 2.5 + 3.25 + 4.25) / 4);
  method.layers[1].value.quantized = false;
  CHECK(bits_per_element(method, 4096).fp16_params == (2 * 2.5 + 3.25 + 16) / 4);
}

TEST_CASE("where values are narrower than keys, bits are those of a layer's channels together") {
  // Keys 2 + 32 / 40, values 2 + 32 / 24; FP8 has no parameters.
  const std::vector<LayerShape> layers{{0, 40, 1, 24}};
  CHECK(bits_per_element(make_baseline("naive", layers, {}, 0), 4096).fp16_params == 3);
  CHECK(bits_per_element(make_baseline("kivi_g128", layers, {}, 0), 4096).fp16_params ==
        doctest::Approx((40 * 2.25 + 24 * (2 + 32.0 / 24)) / 64));
  CHECK(bits_per_element(make_baseline("fp8", layers, {}, 0), 4096).fp32_params == 8);
  const KvLayer turned = make_baseline("hadamard", layers, {}, 0).layer(0);
  CHECK(turned.key.transform->rotation.dim == 40);
  CHECK(turned.value.transform->rotation.dim == 24);
}

TEST_CASE(
    "keys before RoPE: slow pairs have the codes that they had some blocks of positions later, others within a block") {
  constexpr int kDim = 16, kShift = 10 * kTurnBlock, kWithin = kTurnBlock / 2;
  constexpr std::size_t kTokens = 8;
  CodedSide side;
  side.transform.rotation = side.transform.read_rotation = MatrixStack::identity(kDim);
  side.transform.mean.assign(kDim, 0.5);
  side.rotary = plain_rotary(10000, kDim);
  for (float& frequency : side.rotary->frequency) frequency *= kFastFrequency;  // none is fast
  side.formats = {{std::vector<int>(kDim, 16), std::vector<float>(kDim, 0.25F), std::vector<float>(kDim, 1)}};
  CodedPart part;
  part.windows = {0, 1};
  part.layers = {{0, side, side}};
  part.layers[0].value.rotary.reset();
  const KvMethod method = method_of(part, part.windows);
  REQUIRE(method.layer(0).key.method != nullptr);
  CHECK(bits_per_element(method, 4096).fp16_params == 5);  // 4 bits, and two bytes of 16 channels
  const std::vector<float> chunk = test::gaussian_floats(kTokens * kDim, 3);
  std::vector<float> rows((kTokens + kShift) * kDim);  // the chunk at position 0, at kWithin, and again at kShift
  for (const std::size_t first : {std::size_t{0}, std::size_t{kWithin}, std::size_t{kShift}}) {
    const auto own = std::span(rows).subspan(first * kDim, chunk.size());
    std::ranges::copy(chunk, own.begin());
    turn(*side.rotary, Turn::kForth, own, 1, static_cast<std::int64_t>(first));
  }
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  const auto tokens = static_cast<std::int64_t>(kTokens + kShift);
  std::vector<float> read = reconstruct(*method.layer(0).key.method, heads_view(rows, tokens, 1, kDim), {0, tokens},
                                        {{}, Precision::kExact, backend.get()});
  turn(*side.rotary, Turn::kBack, read, 1, 0);
  double noise = 0, moved = 0, within = 0;
  for (std::size_t i = 0; i < chunk.size(); ++i) {
    noise = std::max(noise, std::abs(double{read[i]} - chunk[i]));
    moved = std::max(moved, std::abs(double{read[i]} - read[kShift * kDim + i]));
    within = std::max(within, std::abs(double{read[i]} - read[kWithin * kDim + i]));
  }
  CHECK((noise > 0.05 && noise < 0.5));
  CHECK(moved < 1e-5);
  CHECK(within > 0.01);
}

TEST_CASE("the Hadamard baseline is orthogonal, symmetric and made of equal entries inside its blocks") {
  for (const int dim : {1, 8, 96, 128}) {
    const MatrixStack h = hadamard_baseline_matrix(dim);
    const auto d = static_cast<std::size_t>(dim);
    for (std::size_t i = 0; i < d * d; ++i) CHECK(h.data[i] == h.data[i % d * d + i / d]);
    CHECK(test::orthogonality_error(h[0]) < 1e-14);
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

TEST_CASE("baselines of single rows have levels, groups and rotations of their own") {
  const std::vector<LayerShape> layers{{0, 96}};
  const KvLayer saw = make_baseline("saw_int4", layers, {}, 32).layer(0);
  CHECK(saw.key.codec.levels == 16);
  CHECK(saw.key.codec.group_size == 96);
  CHECK(saw.key.transform != nullptr);
  CHECK(saw.value.transform == nullptr);
  const KvLayer int3 = make_baseline("int3", layers, {}, 32).layer(0);
  CHECK(int3.value.codec == HistoryCodec{RowCodec{.levels = 8, .group_size = 32}});
  CHECK(int3.value.transform->rotation.data[0] == 1 / std::sqrt(32.0));
}

TEST_CASE("bits of methods that decode sequences, at their own windows") {
  const std::vector<LayerShape> layers{{0, 128, 8}, {1, 128, 8}};
  CHECK(peer_named("kitty").windows == Windows{32, 128});
  CHECK(peer_named("hadamard").windows == Windows{64, 256});
  CHECK(peer_named("naive").windows == Windows{0, 0});
  // Published as 2.39 with 32 sink tokens at 32K and without the byte per channel that says where it went.
  const double kitty = bits_per_element(make_baseline("kitty", layers, {32, 0}, 0), 32768).fp16_at_context;
  CHECK(kitty - 4.0 / 128 == doctest::Approx(2.388).epsilon(2e-4));
  CHECK(bits_per_element(make_baseline("kivi_g128", layers, {32, 0}, 0), 32768).fp16_at_context ==
        doctest::Approx(2.263).epsilon(2e-4));
  CHECK(bits_per_element(make_baseline("saw_int4", layers, {0, 0}, 0), 4096).fp16_at_context == 4.25);
}

TEST_CASE("a sequence is held with what the method made of its history") {
  std::vector<float> q(12), k(12), v(12);
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = static_cast<float>(i * i % 7) + 0.3F, v[i] = static_cast<float>(i % 5) - 0.7F;
  }
  const QkvView qkv{heads_view(q, 6, 1, 2), heads_view(k, 6, 1, 2), heads_view(v, 6, 1, 2)};
  const KvMethod kivi = make_baseline("kivi_g32", {{0, 2}}, {2, 1}, 0);
  const auto backend = make_cpu_backend();

  HeldSequence held = hold(kivi, 0, qkv, {}, Precision::kExact, *backend);

  const SequenceContext context{std::nullopt, Precision::kExact, backend.get()};
  CHECK(held.decoded_k.rows == reconstruct(*kivi.layer(0).key.method, qkv.k, {2, 6}, context));
  CHECK(held.decoded_v.rows == reconstruct(*kivi.layer(0).value.method, qkv.v, {2, 6}, context));
  double noise = 0;
  for (std::size_t i = 4; i < 10; ++i) noise += std::pow(double{k[i]} - held.decoded_k.rows[i], 2);
  CHECK(noise > 0);
  CHECK(held.rows->row_errors(kivi.layer(0).codecs(), kivi.windows)[0].key_noise == doctest::Approx(noise));
  CHECK(hold(make_baseline("naive", {{0, 2}}, {2, 1}, 0), 0, qkv, {}, Precision::kExact, *backend)
            .decoded_k.rows.empty());
}

}  // namespace oscar
