// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <array>

#include "model/weights/server_reads.hpp"

namespace oscar {

TEST_CASE("what was read is kept as long as there is room, and only when it is allowed") {
  const std::array<std::byte, 100> names{};
  const std::vector<std::byte> bytes(60, std::byte{7});
  const std::span<const std::byte> all(names);
  std::vector<std::byte> out(60);
  KeptBytes kept;
  kept.add(all.first(60), bytes.data());
  CHECK_FALSE(kept.copy(all.first(60), out.data()));
  kept.allow(100);
  kept.add(all.first(60), bytes.data());
  CHECK(kept.copy(all.first(60), out.data()));
  CHECK(out == bytes);
  CHECK_FALSE(kept.copy(all.first(59), out.data()));
  kept.add(all.subspan(40), bytes.data());  // 120 bytes would be held
  CHECK_FALSE(kept.copy(all.subspan(40), out.data()));
  kept.add(all.subspan(60), bytes.data());
  CHECK(kept.copy(all.subspan(60), out.data()));
}

}  // namespace oscar
