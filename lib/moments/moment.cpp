// SPDX-License-Identifier: MIT
#include "moments/moment.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace oscar {
namespace {

constexpr std::array<std::string_view, 7> kNames{"fisher", "fisher_key", "keys", "ktk", "qqt", "sst", "vtv"};
static_assert(kNames.size() == static_cast<std::size_t>(Moment::kVtv) + 1);

}  // namespace

std::string_view name_of(Moment moment) { return kNames[static_cast<std::size_t>(moment)]; }

std::optional<Moment> find_moment(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Moment>(found - kNames.begin());
}

}  // namespace oscar
