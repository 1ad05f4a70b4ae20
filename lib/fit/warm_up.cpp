// SPDX-License-Identifier: MIT
#include "fit/warm_up.hpp"

#include <vector>

#include "base/files.hpp"

namespace oscar {
namespace {

constexpr int kHeads = 8, kDim = 128;
constexpr std::int64_t kTokens = 65536;  // 128 MiB, so that every reader gets some
constexpr int kOpenFiles = 1000;         // chunks of layers that are read and sampled side by side, three files each

}  // namespace

void warm_up(Backend& backend) {
  if (backend.work_shape().layers_per_batch == 1) return;
  make_room_for_files(kOpenFiles);
  const MatrixStack identity = MatrixStack::identity(kDim);
  (void)backend.eigh(identity);
  HeadsView rows{nullptr, DType::kBF16, kTokens, kHeads, kDim};
  const std::vector<std::byte> zeros(static_cast<std::size_t>(kTokens * rows.bytes_per_token()));
  rows.data = zeros.data();
  MatrixStack grams(kHeads, kDim), forms(kHeads, kDim);
  std::vector<double> weights(kHeads);
  backend.accumulate_grams({{rows}}, grams);
  const HeadsView few = rows.tokens(0, 1024);
  backend.accumulate_weighted_grams({{few}}, forms, {{few}}, grams, weights);
}

}  // namespace oscar
