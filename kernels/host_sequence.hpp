// SPDX-License-Identifier: MIT
// A MixedSequence whose rows lie in host memory, made of a backend's operations on such rows.
#pragma once

#include <functional>
#include <memory>

#include "kernels/mixed_sequence.hpp"

namespace oscar {

struct HostOps {
  std::function<void(HeadsView, const MatrixStack&, Precision, std::span<float>)> rotate;
  std::function<void(std::span<const float>, int, const RowCodec&, Precision, std::span<float>)> quantize;
  std::function<void(const MixedAttention&, std::span<float>)> attend;
  std::function<std::vector<AttentionErrors>(const QkvView&, const MixedAttention&)> compare;
};

[[nodiscard]] std::unique_ptr<MixedSequence> hold_on_host(const SequenceInput& input, HostOps ops);

}  // namespace oscar
