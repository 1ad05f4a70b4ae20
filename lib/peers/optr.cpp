// SPDX-License-Identifier: MIT
// OptR (arXiv 2608.02691) as far as Q, K and V go: the mean key of a head is subtracted before and added after a
// Hadamard and OSCAR's clipped INT2, as published for QuaRot-INT2 + OptR. Softmax does not see a shift of all keys, so
// a server need not add it back. The mean comes from calibration: here from the history itself, which favours it. Its
// refined rotations are not here: 80 steps of Adam on calibration queries and the output projection, which a history
// of keys does not have.
#include "base/check.hpp"
#include "kernels/backend.hpp"
#include "peers/families.hpp"
#include "peers/sides.hpp"

namespace oscar::methods {
namespace {

SideMethod clipped_rows(double clip_ratio) {
  return {[=](const History& history) {
            OSCAR_CHECK(history.context.backend != nullptr);
            history.context.backend->quantize(history.rows, history.dim, RowCodec{.clip_ratio = clip_ratio},
                                              history.context.precision, history.rows, nullptr);
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

}  // namespace

Family optr_methods() {
  return {
      {"optr_centred",
       "OptR's centred keys, Hadamard, clipped INT2; means of the history itself, rotations not refined, for want of "
       "calibration queries and W_O",
       {64, 256},
       centred(rotated(clipped_rows(0.96))),
       rotated(clipped_rows(0.92))}};
}

}  // namespace oscar::methods
