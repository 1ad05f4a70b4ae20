// SPDX-License-Identifier: MIT
// What small errors of a cache's rows cost what a model predicts: the Fisher information of its predictions about the
// rows that queries find in the history. By it the coded cache chooses its bases and spends its bits.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "kernels/backend.hpp"
#include "model/run/runner.hpp"

namespace oscar {

/// C = 1 / (2 T) sum over rows of g^T g, with the gradients g of history_gradients() (model/run/runner.hpp) and T
/// tokens; the mean over draws. Errors e of the rows, independent of each other, cost about mean(e C e^T) nats of KL a
/// token.
struct ErrorCost {
  MatrixStack key, value;  // (Hkv, d, d), (Hkv, d_v, d_v)
};

/// Returns the cost in each of `layers`, which have caches. Layers that read another's cache add to that one's, as if
/// what they read of a row had nothing to do with each other. The bytes do not depend on the number of threads.
[[nodiscard]] std::map<int, ErrorCost> error_costs(ModelRunner& runner, const HistoryQuestion& question,
                                                   std::span<const int> layers, Backend& backend, Status& status);

}  // namespace oscar
