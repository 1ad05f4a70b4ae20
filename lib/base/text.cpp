// SPDX-License-Identifier: MIT
#include "base/text.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <utility>

namespace oscar {
namespace {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 0;  // 0: what stands there is no UTF-8
};

/// The first code point of a text that is not empty (RFC 3629: shortest form, no surrogates, at most U+10FFFF).
CodePoint first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc0 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t value = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {};
    value = value << 6 | (byte(i) & 0x3fU);
  }
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  return value < kLeast.at(bytes) || value > 0x10ffff || surrogate ? CodePoint{} : CodePoint{value, bytes};
}

/// Control characters (C0, DEL, C1), line separators, and marks and overrides of the direction of writing.
bool moves_the_terminal(std::uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x61c || (c >= 0x200e && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

std::string escaped(std::string_view text, bool keep_lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = first_of(text);
    if (next.bytes == 0) {
      out += "\xef\xbf\xbd";
    } else if (moves_the_terminal(next.value) && !(keep_lines && (next.value == '\n' || next.value == '\t'))) {
      std::array<char, 12> escape{};
      (void)std::snprintf(escape.data(), escape.size(), "\\u%04x", next.value);
      out += escape.data();
    } else {
      out += text.substr(0, next.bytes);
    }
    text.remove_prefix(next.bytes == 0 ? 1 : next.bytes);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, true); }
std::string printable_line(std::string_view text) { return escaped(text, false); }

std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string plain_text(std::string text, const std::string& what, const std::string& where, std::size_t most) {
  if (text.size() > most) {
    throw DataError(what + " has " + plural(text.size(), "byte") + ", more than " + std::to_string(most), where,
                    "use a file that its maker wrote with care, or ask for another");
  }
  if (printable_line(text) == text) return text;
  throw DataError(what + " holds control characters, or is not UTF-8: " + printable_line(text.substr(0, 100)), where,
                  "use a file that its maker wrote with care, or ask for another");
}

std::string plural(std::int64_t count, std::string_view one, std::string_view many) {
  std::string text = std::to_string(count) + " ";
  if (count == 1) return text += one;
  return many.empty() ? (text += one) += 's' : text += many;
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool is_plain_name(std::string_view text) {
  constexpr std::size_t kMost = 96;
  const auto alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  const auto allowed = [&](char c) { return alphanumeric(c) || c == '.' || c == '_' || c == '-'; };
  return !text.empty() && text.size() <= kMost && (alphanumeric(text.front()) || text.front() == '_') &&
         std::all_of(text.begin(), text.end(), allowed) && text.find("..") == std::string_view::npos;
}

namespace {

constexpr std::size_t kLongest = 400;  // characters: no name is longer, and texts of others may be

/// Number of inserted, deleted, replaced or swapped neighbouring letters between two words.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::vector<std::string> near_names(const std::string& word, const std::vector<std::string>& names, std::size_t most) {
  std::vector<std::pair<std::size_t, std::string>> near;
  if (word.size() > kLongest) return {};
  for (const std::string& name : names) {
    if (name.size() > kLongest) continue;
    const std::size_t distance = edit_distance(lower_case(word), lower_case(name));
    if (distance <= std::max<std::size_t>(1, word.size() / 3)) near.emplace_back(distance, name);
  }
  std::ranges::stable_sort(near, {}, [](const auto& pair) { return pair.first; });
  near.resize(std::min(near.size(), most));
  std::vector<std::string> found;
  for (auto& [distance, name] : near) found.push_back(std::move(name));
  return found;
}

std::string nearest_name(const std::string& word, const std::vector<std::string>& names) {
  const std::vector<std::string> near = near_names(word, names, 1);
  return near.empty() ? "" : near.front();
}

UsageError unknown_choice(const std::string& value, const std::string& option, const std::vector<std::string>& names,
                          const std::string& hint) {
  std::string remedy = hint.empty() ? "" : hint + "; ";
  if (const std::string near = nearest_name(value, names); !near.empty()) remedy += "did you mean " + near + "? ";
  return {"unknown value \"" + value + "\"", option, remedy + (names.empty() ? "" : "use one of: ") + joined(names)};
}

}  // namespace oscar
