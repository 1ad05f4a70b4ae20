// SPDX-License-Identifier: MIT
// Attention of a KV method inside a model that runs, for some of the queries of a sequence.
#pragma once

#include <map>
#include <span>

#include "codec/kv_method.hpp"
#include "kernels/backend.hpp"
#include "model/run/runner.hpp"

namespace oscar::verify {

/// out (queries.size(), Hq, d_v): for the queries of these tokens, over all keys before them.
void attend(const KvMethod& method, int layer, const QkvView& qkv, SequenceRange queries, const ScoreRule& rule,
            Precision precision, Backend& backend, std::span<float> out);

/// How scores are made, of the layers that keep what a method stores; others keep exact attention.
[[nodiscard]] std::map<int, ScoreRule> rules_of(const ModelRunner& runner);

}  // namespace oscar::verify
