// SPDX-License-Identifier: MIT
// Counts in texts for people.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace oscar::verify {

/// "1 sequence", "2 sequences": `one` takes an s.
[[nodiscard]] std::string plural(std::integral auto count, std::string_view one) {
  return std::to_string(count) + " " + std::string(one) + (count == 1 ? "" : "s");
}

}  // namespace oscar::verify
