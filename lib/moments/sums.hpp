// SPDX-License-Identifier: MIT
// What calibration remembers of a layer: fp64 sums of outer products, per KV head. Sums over parts of the data add up
// to the sum over the whole (merge). Non-goals: reading rows (take.hpp), storing them.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/types.hpp"

namespace oscar {

/// The moments of a layer, in the order of their names, which files and options have. Objectives of recipes are
/// moments, too: the one whose eigenvectors keys, or values, are rotated by.
enum class Moment {
  kFisher,     // "fisher": of queries, weighted by what softmax feels of an error in a score
  kFisherKey,  // "fisher_key": of keys, weighted so
  kKeys,       // "keys": keys themselves, whose mean is subtracted from them
  kKtk,        // "ktk": of keys
  kQqt,        // "qqt": of queries
  kSst,        // "sst": of values, weighted by attention scores
  kVtv         // "vtv": of values
};

[[nodiscard]] std::string_view name_of(Moment moment);
/// Returns the moment of this name; nothing if there is none.
[[nodiscard]] std::optional<Moment> find_moment(std::string_view name);

/// sums[h] = sum of weight * x^T x, total[h] = sum of weights; the second moment of head h is sums[h] / total[h].
struct MomentSums {
  MatrixStack sums;           // (num_kv_heads, dim, dim)
  std::vector<double> total;  // (num_kv_heads)

  /// Adds another part. Throws DataError if heads or dimensions differ.
  void merge(const MomentSums& other);
  /// Returns the second moments; a total below 1e-12 counts as 1e-12, as in the published fitter.
  [[nodiscard]] MatrixStack mean() const;
};

/// Keys added up, (Hkv, d), and how many.
struct KeySums {
  std::vector<double> sums;
  double tokens = 0;

  void merge(const KeySums& other);
  /// Returns the mean key of each head, (Hkv, d).
  [[nodiscard]] std::vector<double> mean() const;
};

void merge(FisherSums& sums, const FisherSums& other);

/// FisherSums over their weight: what softmax feels of errors in the scores of a layer, per KV head.
struct FisherMoments {
  MatrixStack query, key;        // (Hkv, d, d)
  std::vector<double> key_mean;  // (Hkv, d)
};
/// Throws DataError if no sequence was longer than the windows: then there is no history to weigh.
[[nodiscard]] FisherMoments mean(const FisherSums& sums, Windows windows);

/// The sums over the tokens of one layer that one walk over its rows takes. Parts of its data add up.
struct AdditiveMoments {
  std::map<Moment, MomentSums> sums;  // kKtk, kQqt, kVtv
  std::optional<FisherSums> fisher;
  std::optional<KeySums> keys;

  /// Adds another part, of which the same sums were taken.
  void merge(const AdditiveMoments& other);
};

/// Returns second moments about a mean m, where `moments` are about 0 and `own` is the mean of the rows themselves
/// (equal to m for plain moments): C - own^T m - m^T own + m^T m. own, mean: (count, d).
[[nodiscard]] MatrixStack centred(MatrixStack moments, std::span<const double> own, std::span<const double> mean);

}  // namespace oscar
