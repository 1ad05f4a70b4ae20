// SPDX-License-Identifier: MIT
#include "model/decoder_torch/head.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>

#include <algorithm>

#include "base/check.hpp"
#include "model/layout.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kHeadBlock = 8192;  // rows that are in memory at a time

}  // namespace

void load_final_norm(const WeightRoute& route, Weights& weights) {
  weights.put("norm.weight", load_tensor(route, kFinalNormName));
  if (route.config.norm_bias) weights.put("norm.bias", load_tensor(route, kFinalNormBiasName));
}

void write_logits(const WeightRoute& route, const Weights& final_norm, const at::Tensor& hidden,
                  std::span<float> logits) {
  const std::string head = head_weight_name(route.config);
  const std::int64_t vocab = route.store.at(head).shape[0];
  const std::int64_t wanted = static_cast<std::int64_t>(logits.size()) / vocab;
  OSCAR_CHECK(logits.size() == static_cast<std::size_t>(wanted * vocab) && wanted <= hidden.size(0));
  const at::Tensor normed = final_norm.norm(hidden.narrow(0, hidden.size(0) - wanted, wanted), "norm");
  const at::Tensor out = at::from_blob(logits.data(), {normed.size(0), vocab}, at::kFloat);
  for (std::int64_t begin = 0; begin < vocab; begin += kHeadBlock) {
    const std::int64_t end = std::min(vocab, begin + kHeadBlock);
    out.narrow(1, begin, end - begin).copy_(at::linear(normed, load_rows(route, head, begin, end)));
  }
  if (route.config.logit_scale != 1) out.mul_(route.config.logit_scale);
  const double cap = route.config.logit_soft_cap;
  if (cap > 0) out.div_(cap).tanh_().mul_(cap);
}

}  // namespace oscar
