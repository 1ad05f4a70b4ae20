// SPDX-License-Identifier: MIT
#include "numbers.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>

namespace oscar {
namespace {

/// What the validator makes of a text; "!" if it refuses.
std::string made_of(const CLI::Validator& validator, std::string text) { return validator(text).empty() ? text : "!"; }

}  // namespace

TEST_CASE("counts have thousands, sizes have powers of 1024") {
  for (const auto& [text, value] : {std::pair{"30k", "30000"},
                                    {"1K", "1000"},
                                    {"2M", "2000000"},
                                    {"7B", "7000000000"},
                                    {"1G", "1000000000"},
                                    {"12", "12"},
                                    {"0k", "0"}}) {
    CHECK(made_of(kCount, text) == value);
  }
  for (const auto& [text, value] : {std::pair{"32K", "32768"},
                                    {"10G", "10737418240"},
                                    {"1kb", "1024"},
                                    {"1KiB", "1024"},
                                    {"500M", "524288000"},
                                    {"7b", "7"},
                                    {"12", "12"},
                                    {"1T", "1099511627776"}}) {
    CHECK(made_of(kSize, text) == value);
  }
}

TEST_CASE("numbers that are none, negative or too large are refused") {
  for (const char* text : {"1.5k", "1.5x", "-1k", "1x", "1kk", "1 k", "9223372036854775807k", "99999999999G", "0x1F"}) {
    CAPTURE(text);
    CHECK(made_of(kCount, text) == "!");
    CHECK(made_of(kSize, text) == "!");
  }
}

}  // namespace oscar
