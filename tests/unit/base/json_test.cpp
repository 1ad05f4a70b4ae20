// SPDX-License-Identifier: MIT
#include "base/json.hpp"

#include <doctest/doctest.h>

#include "base/errors.hpp"

namespace oscar {
namespace {

std::string refusal(std::string_view text) {
  try {
    (void)parse_json(text, "here");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("arrays that take far more memory than their text are refused before they are made") {
  std::string empty = "[[]", used = "[[7]";
  for (int i = 1; i < 200'000; ++i) empty += ",[]", used += ", [\"a\", 7]";
  CHECK(refusal(empty + "]").find("more arrays and objects than") == 0);
  CHECK(refusal(used + "]").empty());
}

TEST_CASE("what readers of JSON disagree about is refused") {
  CHECK(refusal(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]})").empty());
  CHECK(refusal(R"({"a": 1, "a": 1})").find("\"a\" stands twice") != std::string::npos);
  CHECK(refusal(R"({"x": {"a": 1, "b": [], "\u0061": 2}})").find("stands twice") != std::string::npos);
  CHECK(refusal(R"({"a": 1} {"b": 2})").find("not valid JSON") == 0);
  CHECK(refusal(std::string_view("{\"a\": 1}\0{\"a\": 2}", 17)).find("zero byte") != std::string::npos);
  CHECK(refusal("\xff").find("not valid JSON") == 0);
  CHECK(refusal(std::string(200, '[')).find("nested too deeply") != std::string::npos);
}

}  // namespace oscar
