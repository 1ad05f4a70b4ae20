// SPDX-License-Identifier: MIT
// Keys in product codes, as OSCAR's SGLang serves them (SGLANG_OSCAR_K_QUANTIZER=pq): windows and values are those of
// a rotation set, keys are turned by its matrices, and their history is codes of given codebooks, with no scale and no
// clip. Codebooks belong to the matrices that they were trained with. Non-goals: training them, values in such codes.
#pragma once

#include <filesystem>
#include <vector>

#include "codec/kv_method.hpp"
#include "model/config/identity.hpp"

namespace oscar::verify {

struct ProductCodes {
  /// Files of codebooks (verify/codebook_file.hpp) for keys.
  std::vector<std::filesystem::path> codebooks;
  /// The rotations that they were trained with, as read_subject() takes them; empty: the set under test.
  std::filesystem::path rotations;
};

/// A method for every file: "pq_1.0" for 1.0 bit a value. compare: Comparison::names, which must name the files'
/// methods and no others. set: the method under test, whose layers all have. Throws UsageError for a name without a
/// file or a file without a name, and for a set of another kind than rotations without codes.rotations; DataError for
/// a file that no server takes, and for codebooks and rotations that do not fit the layers.
[[nodiscard]] std::vector<KvMethod> pq_methods(const ProductCodes& codes, const std::vector<std::string>& compare,
                                               const KvMethod& set, const ModelIdentity& model);

}  // namespace oscar::verify
