// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "base/text.hpp"

namespace oscar {

TEST_CASE("near names are suggested, nearest first, far ones are not") {
  const std::vector<std::string> known = {"Qwen/Qwen3-4B:latest", "Qwen/Qwen3-8B:latest", "meta/Llama:latest"};
  CHECK(near_names("qwen/qwen3-8b:latest", known) ==
        std::vector<std::string>{"Qwen/Qwen3-8B:latest", "Qwen/Qwen3-4B:latest"});
  CHECK(near_names("qwen/qwen3-8b:latest", known, 1) == std::vector<std::string>{"Qwen/Qwen3-8B:latest"});
  CHECK(near_names("x/y:z", known).empty());
  CHECK(nearest_name("verfiy", {"fit", "verify"}) == "verify");  // two letters swapped
  CHECK(nearest_name("nothing", {"fit", "verify"}).empty());
  CHECK(nearest_name(std::string(100'000, 'a'), {"fit"}).empty());
}

TEST_CASE("a value that is no choice is answered with the choices, and the one that was meant") {
  const UsageError error = unknown_choice("stetch", "--recipe", {"lsq", "stretch"}, "hint");
  CHECK(std::string(error.what()) == "unknown value \"stetch\"");
  CHECK(error.where() == "--recipe");
  CHECK(error.remedy() == "hint; did you mean stretch? use one of: lsq, stretch");
  CHECK(unknown_choice("nothing", "--recipe", {"lsq", "stretch"}).remedy() == "use one of: lsq, stretch");
}

}  // namespace oscar
