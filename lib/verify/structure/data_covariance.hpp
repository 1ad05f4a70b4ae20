// SPDX-License-Identifier: MIT
// Second moments of the data at hand, by the objective that a side names: what its eigenvectors should diagonalise.
//   qqt queries   ktk keys   sst values weighted by k C k^T   vtv values
#pragma once

#include <string>
#include <vector>

#include "verify/structure/checks.hpp"

namespace oscar::verify {

/// Adds that of a layer, unless it is there; nothing for objectives that no second moment of the data explains
/// ("hadamard", "uresidual"). Leaves the stream at its end.
void take_covariance(int layer_id, const std::string& objective, LayerStream& layer, bool same_tokens,
                     std::int64_t tokens, Backend& backend, DataMoments& found);

/// Adds those of all layers that saved sums know; where they lack what the objective names, a check says that it is
/// unknown. fitted_sha256: of the data that the set was fitted on. Throws DataError if KV heads are missing.
void take_covariances(const RotationSide& side, const std::string& fitted_sha256, const Statistics& statistics,
                      DataMoments& found, std::vector<Check>& checks);

/// Moments of one layer for the coded cache. same_tokens: of the very tokens that the set was fitted on.
[[nodiscard]] CodedMoments coded_moments_of(int layer_id, LayerStream& layer, const CodedPart& part, bool same_tokens,
                                            Backend& backend);

/// Returns moments from saved sums, of every layer that has those of keys and values (ktk, keys, vtv); of others a
/// check says that it is unknown. Throws DataError if KV heads are missing.
[[nodiscard]] std::vector<CodedMoments> coded_moments_of(const Statistics& statistics, std::vector<Check>& checks);

/// What a report says of the sums that a set was held against.
[[nodiscard]] Json description_of(const Statistics& statistics);

}  // namespace oscar::verify
