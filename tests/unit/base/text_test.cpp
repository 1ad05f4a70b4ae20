// SPDX-License-Identifier: MIT
#include "base/text.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <memory>

#include "base/errors.hpp"
#include "base/json.hpp"
#include "support/support.hpp"

namespace oscar {

TEST_CASE("what a terminal would obey is escaped, and other text is left alone") {
  CHECK(printable("plain, größer, 鍵, 🔑\n\tindented") == "plain, größer, 鍵, 🔑\n\tindented");
  CHECK(printable("\x1b[2Jgone") == "\\u001b[2Jgone");
  CHECK(printable("a\rb\b\x7f") == "a\\u000db\\u0008\\u007f");
  CHECK(printable("\xc2\x9b"
                  "31m") == "\\u009b31m");  // C1: another way to begin a sequence
  CHECK(printable("\xe2\x80\xae"
                  "txt.exe") == "\\u202etxt.exe");  // right to left
  CHECK(printable(std::string("zero\0byte", 9)) == "zero\\u0000byte");
  CHECK(printable_line("one\ntwo\tthree") == "one\\u000atwo\\u0009three");
}

TEST_CASE("bytes that are no UTF-8 become one replacement character each") {
  const std::string bad = "\xef\xbf\xbd";
  CHECK(printable("a\xff"
                  "b") == "a" + bad + "b");
  CHECK(printable("\xc0\xaf") == bad + bad);                      // a slash, longer than it need be
  CHECK(printable("\xed\xa0\x80") == bad + bad + bad);            // half of a surrogate pair
  CHECK(printable("\xf4\x90\x80\x80") == bad + bad + bad + bad);  // beyond U+10FFFF
  CHECK(printable("cut \xe9\x8d") == "cut " + bad + bad);
}

TEST_CASE("JSON stays the same document") {
  const Json document{{"a\x7f", "\x1b[0m\xc2\x85"}, {"list", {1, "\xe2\x80\xa8"}}};
  const std::string text = printable(json_text(document));
  CHECK(text.find('\x7f') == std::string::npos);
  CHECK(text.find("\xc2\x85") == std::string::npos);
  CHECK(parse_json(text, "here") == document);
}

TEST_CASE("JSON that takes far more memory than its text is refused before it is made") {
  std::string empty = "[[]", used = "[[7]";
  for (int i = 1; i < 200'000; ++i) empty += ",[]", used += ", [\"a\", 7]";
  CHECK_ERROR(parse_json(empty + "]", "here"), DataError, "more arrays and objects than");
  CHECK_NOTHROW((void)parse_json(used + "]", "here"));
}

TEST_CASE("what readers of JSON disagree about is refused") {
  CHECK_NOTHROW((void)parse_json(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]})", "here"));
  const std::string_view zero("{\"a\": 1}\0{\"a\": 2}", 17);
  const std::string deep(200, '[');
  for (const auto& [text, reason] :
       {std::pair<std::string_view, const char*>{R"({"a": 1, "a": 1})", "\"a\" stands twice"},
        {R"({"x": {"a": 1, "b": [], "\u0061": 2}})", "stands twice"},
        {R"({"a": 1} {"b": 2})", "not valid JSON"},
        {zero, "zero byte"},
        {"\xff", "not valid JSON"},
        {deep, "nested too deeply"}}) {
    CHECK_ERROR(parse_json(text, "here"), DataError, reason);
  }
}

TEST_CASE("a shell gets quoted text back as it was") {
  for (const std::string text : {"plain", "it's", "$(touch x); `y` \"z\" \\", "two\nlines", "", "-n", "'''"}) {
    const std::string command = "printf %s " + shell_quoted(text);
    const std::unique_ptr<FILE, int (*)(FILE*)> shell(::popen(command.c_str(), "r"), ::pclose);
    std::array<char, 256> out{};
    const std::size_t size = std::fread(out.data(), 1, out.size(), shell.get());
    CHECK(std::string(out.data(), size) == text);
  }
}

TEST_CASE("text of others is taken only if it is plain") {
  CHECK(plain_text("Qwen/Qwen3-8B", "the model", "here") == "Qwen/Qwen3-8B");
  CHECK_THROWS_AS((void)plain_text("two\nlines", "the model", "here"), DataError);
  CHECK_THROWS_AS((void)plain_text("\xff", "the model", "here"), DataError);
  CHECK_THROWS_AS((void)plain_text("long", "the model", "here", 3), DataError);
}

TEST_CASE("one of a thing has no s") {
  CHECK(plural(1, "layer") == "1 layer");
  CHECK(plural(0, "layer") == "0 layers");
  CHECK(plural(2, "layer") == "2 layers");
  CHECK(plural(1, "matrix", "matrices") == "1 matrix");
  CHECK(plural(3, "matrix", "matrices") == "3 matrices");
}

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
  const UsageError error = unknown_choice("stetch", "--recipe", {"oscar", "stretch"}, "hint");
  CHECK(std::string(error.what()) == "unknown value \"stetch\"");
  CHECK(error.where() == "--recipe");
  CHECK(error.remedy() == "hint; did you mean stretch? use one of: oscar, stretch");
  CHECK(unknown_choice("nothing", "--recipe", {"oscar", "stretch"}).remedy() == "use one of: oscar, stretch");
}

}  // namespace oscar
