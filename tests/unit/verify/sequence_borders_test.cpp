// SPDX-License-Identifier: MIT
// Methods that look at several tokens see those of one sequence, whatever else lies in the same chunk of a dump.
#include <doctest/doctest.h>

#include "measure/peers/baselines.hpp"
#include "support/backend.hpp"
#include "support/synthetic.hpp"
#include "verify/measure_source.hpp"

namespace oscar {
namespace {

constexpr int kDim = 16, kKvHeads = 2;
constexpr std::int64_t kFirst = 150, kAll = 260;

Tensor tokens_of(const Tensor& all, std::int64_t begin, std::int64_t end) {
  Tensor part(all.dtype, {end - begin, all.shape[1], all.shape[2]});
  const std::size_t width = all.data.size() / static_cast<std::size_t>(all.shape[0]);
  std::copy_n(all.data.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(begin) * width), part.data.size(),
              part.data.begin());
  return part;
}

/// Figures of every method on one layer in these chunks.
std::vector<double> softmax_kl(std::vector<test::MemoryChunk> chunks, const std::vector<KvMethod>& methods) {
  test::MemorySource source({{0, std::move(chunks)}});
  const auto backend = test::make_test_backend();
  Status silent;
  const auto no_moments = [](int, LayerStream&, std::int64_t) { return verify::DataMoments{}; };
  const auto found =
      verify::measure_source(source, {methods, no_moments, {}, 0, Precision::kServing, {4, 16}}, *backend, silent);
  std::vector<double> figures;
  for (const auto& method : found.methods) figures.push_back(method.layers[0].metrics().softmax_kl);
  return figures;
}

}  // namespace

TEST_CASE("groups of tokens, scales of tokens and positions end with a sequence") {
  std::vector<KvMethod> methods;
  for (const char* name : {"kivi_g32", "kivi_g128", "kitty", "occam", "optr_centred", "rotatekv"}) {
    methods.push_back(make_baseline(name, {{0, kDim, kKvHeads, 0, plain_rotary(10000, kDim)}}, {4, 16}, 0));
  }
  const test::MemoryChunk all = test::synthetic_layer({.tokens = kAll})[0];
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    return test::MemoryChunk{
        tokens_of(all.q, begin, end), tokens_of(all.k, begin, end), tokens_of(all.v, begin, end), {{0, end - begin}}};
  };
  test::MemoryChunk together = part(0, kAll);
  together.sequences = {{0, kFirst}, {kFirst, kAll}};

  const auto in_one_chunk = softmax_kl({together}, methods);

  CHECK(in_one_chunk == softmax_kl({part(0, kFirst), part(kFirst, kAll)}, methods));
  const auto as_one_sequence = softmax_kl({part(0, kAll)}, methods);
  for (std::size_t m = 0; m < methods.size(); ++m) {
    CAPTURE(methods[m].name);
    CHECK(in_one_chunk[m] > 0);
    CHECK(in_one_chunk[m] != as_one_sequence[m]);
  }
}

}  // namespace oscar
