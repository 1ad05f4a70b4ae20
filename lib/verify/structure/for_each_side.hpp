// SPDX-License-Identifier: MIT
// The loop that most checks are: every layer of every side, in parallel, results in order.
#pragma once

#include <functional>
#include <vector>

#include "base/threads.hpp"
#include "verify/report/report.hpp"
#include "verify/structure/subject.hpp"

namespace oscar::verify {

using SideCheck = std::function<void(const SubjectSide& side, int layer_id, const SideTransform& transform,
                                     std::vector<Check>& checks)>;

inline void for_each_side(const Subject& subject, std::vector<Check>& checks, const SideCheck& check) {
  for (const SubjectSide& side : subject.sides) {
    std::vector<std::vector<Check>> found(side.layers.size());
    parallel_for(found.size(),
                 [&](std::size_t i) { check(side, side.layers[i].first, side.layers[i].second, found[i]); });
    for (auto& part : found) checks.insert(checks.end(), part.begin(), part.end());
  }
}

}  // namespace oscar::verify
