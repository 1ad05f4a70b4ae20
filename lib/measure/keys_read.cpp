// SPDX-License-Identifier: MIT
#include "measure/keys_read.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"

namespace oscar {

KeysRead keys_read(std::int64_t begin, std::int64_t end, std::int64_t stride, Windows windows) {
  KeysRead keys;
  for (std::int64_t p = std::max<std::int64_t>(begin, 0); p < end; p += stride) {
    keys.all += p + 1;
    keys.quantised += std::max<std::int64_t>(0, p + 1 - windows.sink - windows.recent);
  }
  return keys;
}

KeysRead keys_of_attention(std::span<const std::int64_t> lengths, std::int64_t stride, Windows windows) {
  KeysRead keys;
  for (const std::int64_t length : lengths) {
    if (length > 0) keys += keys_read((length - 1) % stride, length, stride, windows);  // the last query is one of them
  }
  return keys;
}

KeysRead keys_of_texts(const ModelData& data, Windows windows) {
  KeysRead keys;
  for (const TokenSequence& text : data.texts) {
    keys += keys_read(0, static_cast<std::int64_t>(text.size()) - 1, 1, windows);
  }
  return keys;
}

namespace {

/// The keys that the predictions of answers read, of all but their last `spare` tokens.
KeysRead keys_of_answers(const std::vector<TokenSequence>& sequences, const std::vector<int>& lengths, int spare,
                         Windows windows) {
  KeysRead keys;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto tokens = static_cast<std::int64_t>(sequences[i].size());
    keys += keys_read(tokens - lengths[i] - 1, tokens - 1 - spare, 1, windows);
  }
  return keys;
}

}  // namespace

KeysRead keys_of_needles(const ModelData& data, Windows windows) {
  return keys_of_answers(data.needles, data.answer_lengths, 1, windows);
}

KeysRead keys_of_quotes(const ModelData& data, Windows windows) {
  return keys_of_answers(data.quotes, data.quote_lengths, 0, windows);
}

std::int64_t query_stride(std::int64_t tokens, std::int64_t max_queries) {
  const std::int64_t limit = std::max<std::int64_t>(max_queries > 0 ? max_queries : tokens, 1);
  return std::max<std::int64_t>(1, (tokens + limit - 1) / limit);
}

void require_quantised(const KeysRead& keys, const std::string& what, const std::string& where, Windows windows) {
  if (keys.share() >= kMinQuantisedShare) return;
  throw DataError(
      fmt::format("figures of {} would say nothing: of the keys that are read there {:.1f} % are quantised, the others "
                  "lie in the windows (first {} and last {} tokens)",
                  what, 100 * keys.share(), windows.sink, windows.recent),
      where,
      fmt::format("give sequences of {} tokens or more, or smaller windows (--sink, --recent)",
                  3 * (std::int64_t{windows.sink} + windows.recent) / 2 + 1));
}

Json to_json(const KeysRead& keys) {
  return {{"keys_read", keys.all}, {"keys_quantised", keys.quantised}, {"quantised_share", keys.share()}};
}

}  // namespace oscar
