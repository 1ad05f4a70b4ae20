// SPDX-License-Identifier: MIT
// How much of what measured queries read was quantised. Queries near the beginning of a text read keys of the two
// windows only, which stay in bfloat16. It follows from lengths and windows alone, so it is known before any work.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/json.hpp"
#include "kernels/types.hpp"
#include "measure/predictions/model_metrics.hpp"

namespace oscar {

/// Figures of which less was quantised say nothing about a set: errors fade with this share, and the default limits are
/// those of long texts. Of the sample model, a set that neither rotates nor clips is above the default limits from a
/// share of 0.11 on, and below them at 0.10 (windows of 64 and 256 tokens; tests/unit/verify/measured_text_test.cpp). A
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

/// "keys_read", "keys_quantised" and "quantised_share".
[[nodiscard]] Json to_json(const KeysRead& keys);

}  // namespace oscar
