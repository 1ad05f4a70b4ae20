// SPDX-License-Identifier: MIT
#include "verify/verdict/measured_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/text.hpp"

namespace oscar::verify {
namespace {

std::vector<std::string_view> blocks_of(std::string_view sequence) {
  std::vector<std::string_view> blocks;
  for (; sequence.size() >= CalibrationData::kBlockDigits; sequence.remove_prefix(CalibrationData::kBlockDigits)) {
    blocks.push_back(sequence.substr(0, CalibrationData::kBlockDigits));
  }
  return blocks;
}

std::set<std::string_view> blocks_of(const CalibrationData& fitted) {
  std::set<std::string_view> known;
  for (const std::string& sequence : fitted.blocks) {
    for (const std::string_view block : blocks_of(sequence)) known.insert(block);
  }
  return known;
}

/// Blocks of the sequence, from any offset on, that are known.
std::size_t count_known(std::span<const std::int32_t> ids, const std::set<std::string_view>& known) {
  constexpr std::size_t kBlock = CalibrationData::kBlockTokens;
  std::size_t found = 0;
  for (std::size_t begin = 0; begin == 0 || begin + kBlock <= ids.size();) {
    const bool same = known.contains(block_hash(ids.subspan(begin, std::min(kBlock, ids.size()))));
    found += same ? 1 : 0;
    begin += same ? kBlock : 1;
  }
  return found;
}

}  // namespace

std::optional<std::int64_t> sequences_fitted_on(const CalibrationData& fitted,
                                                std::span<const TokenSequence> measured) {
  if (fitted.blocks.empty() || measured.empty()) return std::nullopt;
  const std::set<std::string_view> known = blocks_of(fitted);
  std::int64_t seen = 0;
  for (const TokenSequence& sequence : measured) {
    const std::size_t found = count_known(sequence, known);
    seen += found > 0 && 2 * found >= sequence.size() / CalibrationData::kBlockTokens ? 1 : 0;
  }
  return seen;
}

std::optional<std::int64_t> sequences_fitted_on(const CalibrationData& fitted, const CalibrationData& measured) {
  if (!measured.data_sha256.empty() && measured.data_sha256 == fitted.data_sha256) return measured.sequences;
  if (fitted.blocks.empty() || measured.blocks.empty()) return std::nullopt;
  const std::set<std::string_view> known = blocks_of(fitted);
  std::int64_t seen = 0;
  for (const std::string& sequence : measured.blocks) {
    const std::vector<std::string_view> blocks = blocks_of(sequence);
    std::size_t found = 0;
    for (const std::string_view block : blocks) found += known.contains(block) ? 1 : 0;
    seen += found > 0 && 2 * found >= blocks.size() ? 1 : 0;
  }
  return seen;
}

void judge_held_out(VerifyReport& report, const std::string& what, std::optional<std::int64_t> seen,
                    std::int64_t sequences, bool required) {
  Json& data = report.data[what];
  data["sequences"] = sequences;
  data["sequences_fitted_on"] = seen ? Json(*seen) : Json(nullptr);
  data["held_out"] = seen ? Json(*seen == 0) : Json(nullptr);
  if (seen == 0 || (!seen && !required)) return;
  const std::string text =
      seen ? what + " is measured on " + std::to_string(*seen) + " of " + plural(sequences, "sequence") +
                 " that the set was fitted on: give other text"
           : "nothing tells whether " + what + " is measured on text that the set was fitted on: fit it again";
  (required ? report.reasons : report.warnings).push_back(text + (required ? " (--require-held-out)" : ""));
}

void require_quantised_texts(const ModelData& data, Windows windows) {
  check_model_data(data);
  if (!data.texts.empty()) {
    require_quantised(keys_of_texts(data, windows), "the model", "--text, --tokens", windows);
  }
  if (!data.needles.empty()) {
    require_quantised(keys_of_needles(data, windows), "needles", "--needle", windows);
  }
  if (!data.quotes.empty()) {
    require_quantised(keys_of_quotes(data, windows), "quotations", "--quote", windows);
  }
}

}  // namespace oscar::verify
