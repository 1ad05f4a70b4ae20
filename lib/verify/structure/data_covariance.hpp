// SPDX-License-Identifier: MIT
// Second moments of the data at hand, by the objective that a side names: what its eigenvectors should diagonalise.
//   qqt queries   ktk keys   sst values weighted by k C k^T   vtv values
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "verify/structure/subject.hpp"

namespace oscar::verify {

/// One matrix per KV head; nullopt for objectives that no second moment of the data explains ("hadamard", "uresidual").
/// Leaves the stream at its end.
[[nodiscard]] std::optional<MatrixStack> covariance_of(const std::string& objective, LayerStream& layer,
                                                       Backend& backend);

/// Returns covariances from saved sums, of every layer and side that they know; where they lack those that an objective
/// names, a check says that it is unknown. Throws DataError if KV heads are missing.
[[nodiscard]] std::vector<DataCovariance> covariances_of(const RotationSubject& subject, const Statistics& statistics,
                                                         std::vector<Check>& checks);

/// Moments of one layer for a set of the coded cache. same_tokens: of the very tokens that the set was fitted on.
[[nodiscard]] CodedMoments coded_moments_of(int layer_id, LayerStream& layer, const CodedPart& set, bool same_tokens,
                                            Backend& backend);

/// Returns moments from saved sums, of every layer that has those of keys and values (ktk, keys, vtv); of others a
/// check says that it is unknown. Throws DataError if KV heads are missing.
[[nodiscard]] std::vector<CodedMoments> coded_moments_of(const Statistics& statistics, std::vector<Check>& checks);

/// What a report says of the sums that a set was held against.
[[nodiscard]] Json description_of(const Statistics& statistics);

}  // namespace oscar::verify
