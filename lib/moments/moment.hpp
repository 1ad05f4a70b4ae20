// SPDX-License-Identifier: MIT
// The moments of a layer by name. Objectives of recipes are moments, too: the one whose eigenvectors keys, or values,
// are rotated by.
#pragma once

#include <optional>
#include <string_view>

namespace oscar {

/// The moments, in the order of their names, which files and options have.
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

}  // namespace oscar
