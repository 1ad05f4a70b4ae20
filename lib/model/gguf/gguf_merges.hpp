// SPDX-License-Identifier: MIT
// The merges of a SentencePiece model in the order of its scores, as byte pair encoding applies them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace oscar {

/// ggml's kinds of tokens.
inline constexpr int kGgufNormal = 1, kGgufUnknown = 2, kGgufControl = 3, kGgufUserDefined = 4;

/// What SentencePiece writes for a space: U+2581.
inline constexpr const char* kSpaceMark = "\xE2\x96\x81";

/// Every way to make a token of two others is a merge, ["left", "right"]. Those of tokens with the highest score come
/// first; among those of one token, those with the longer left part. tokens, types and scores: by id, of one length.
[[nodiscard]] Json merges_by_score(std::span<const std::string> tokens, std::span<const int> types,
                                   std::span<const double> scores);

}  // namespace oscar
