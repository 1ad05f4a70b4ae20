// SPDX-License-Identifier: MIT
// Whether the text that was measured on can say something about a set: was it held out, and was enough of it quantised?
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/json.hpp"
#include "kernels/types.hpp"
#include "model/config/identity.hpp"
#include "verify/predictions/model_data.hpp"
#include "verify/report/report.hpp"

namespace oscar::verify {

// Figures count only on text that a set was not fitted on. Blocks of token ids are compared: where the ids are at hand,
// fitted blocks are found wherever they stand; of a dump only hashes are, of blocks from the start of each sequence on.

/// How many of the measured sequences were fitted on: half of their blocks or more are among the fitted ones.
/// None if that cannot be told.
[[nodiscard]] std::optional<std::int64_t> sequences_fitted_on(const CalibrationData& fitted,
                                                              const CalibrationData& measured);

/// Returns how many of the measured sequences, given as token ids, the set was fitted on.
[[nodiscard]] std::optional<std::int64_t> sequences_fitted_on(const CalibrationData& fitted,
                                                              std::span<const TokenSequence> measured);

/// Records in report.data[what] whether what was measured, `sequences` of which `seen` were fitted on, is held out;
/// warns if it is not, or, where held-out data is `required`, rejects, also if it cannot be told. what: "attention" or
/// "model".
void judge_held_out(VerifyReport& report, const std::string& what, std::optional<std::int64_t> seen,
                    std::int64_t sequences, bool required);

// Queries near the beginning of a text read keys of the two windows only, which stay in bfloat16. It follows from
// lengths and windows alone, so it is known before any work.

/// Figures of which less was quantised say nothing about a set: errors fade with this share, and the default limits are
/// those of long texts. Of the sample model, a set that neither rotates nor clips is above the default limits from a
/// share of 0.11 on, and below them at 0.10 (windows of 64 and 256 tokens; tests/unit/verify/quantised_test.cpp). A
/// text that is half as long again as both windows has 0.11.
inline constexpr double kMinQuantisedShare = 0.1;

/// The number of keys that measured queries read. A key counts as often as it was read.
struct KeysRead {
  std::int64_t all = 0, quantised = 0;

  [[nodiscard]] double share() const { return all > 0 ? static_cast<double>(quantised) / static_cast<double>(all) : 0; }
  void operator+=(const KeysRead& other) { all += other.all, quantised += other.quantised; }
};

/// Counts the keys that are read by the queries at positions begin, begin + stride … before `end`, each of
/// which reads all keys up to its own.
[[nodiscard]] KeysRead keys_read(std::int64_t begin, std::int64_t end, std::int64_t stride, Windows windows);
/// Counts the keys that are read by the queries which attention metrics look at, in sequences of these lengths.
[[nodiscard]] KeysRead keys_of_attention(std::span<const std::int64_t> lengths, std::int64_t stride, Windows windows);
/// Counts the keys that are read at the positions whose predictions are compared, at those that predict the answers of
/// needles, and at those that predict quotations.
[[nodiscard]] KeysRead keys_of_texts(const ModelData& data, Windows windows);
[[nodiscard]] KeysRead keys_of_needles(const ModelData& data, Windows windows);
[[nodiscard]] KeysRead keys_of_quotes(const ModelData& data, Windows windows);

/// Every stride-th query is measured, so that of so many tokens about `max_queries` are (0: all).
[[nodiscard]] std::int64_t query_stride(std::int64_t tokens, std::int64_t max_queries);

/// Throws DataError if less than kMinQuantisedShare was quantised. what: whose figures these are ("attention"), where:
/// the option or the file that the text comes from.
void require_quantised(const KeysRead& keys, const std::string& what, const std::string& where, Windows windows);

/// Throws DataError for texts, needles or quotations of which next to nothing is outside the windows.
void require_quantised_texts(const ModelData& data, Windows windows);

/// "keys_read", "keys_quantised" and "quantised_share".
[[nodiscard]] Json to_json(const KeysRead& keys);

}  // namespace oscar::verify
