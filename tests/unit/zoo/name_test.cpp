// SPDX-License-Identifier: MIT
#include "zoo/name.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

#include "support/support.hpp"
#include "zoo/list.hpp"

namespace oscar {

TEST_CASE("a name has an organisation, a model, and a tag or a hash") {
  const SetName plain = parse_set_name("Qwen/Qwen3-8B");
  CHECK(plain.model == "Qwen/Qwen3-8B");
  CHECK(plain.tag == "latest");
  CHECK(parse_set_name("a/b:v1.2_x").text() == "a/b:v1.2_x");
  const std::string hash(64, 'a');
  const SetName pinned = parse_set_name("a/b@sha256:" + hash);
  CHECK(pinned.tag.empty());
  CHECK(pinned.manifest_sha256 == hash);
  CHECK(pinned.text() == "a/b@sha256:" + hash);
}

TEST_CASE("names that could leave their folder or confuse a shell are refused") {
  for (const char* bad : {"",
                          "a",
                          "a/",
                          "/b",
                          "a/b/c",
                          "../b",
                          "a/..",
                          "a/b..c",
                          ".a/b",
                          "a/.b",
                          "-a/b",
                          "a/-b",
                          "a/b:",
                          "a/b:.",
                          "a/b:-x",
                          "a/b:x/y",
                          "a/b:x:y",
                          "a/b c",
                          "a/b\n",
                          "a/b\\c",
                          "a/b%2e",
                          "\xc3\xa4/b",
                          "a/b@sha256:",
                          "a/b@sha256:abc",
                          "a/b:x@sha256:abc",
                          "index.json/b"}) {
    CHECK_ERROR(parse_set_name(bad), UsageError, "ORG/MODEL");
  }
  CHECK_ERROR(parse_set_name("a/" + std::string(97, 'b')), UsageError, "ORG/MODEL");
  CHECK(parse_set_name("a/" + std::string(96, 'b')).model.size() == 98);
}

TEST_CASE("a zoo is a folder, a web server, or a folder on the hub") {
  CHECK(zoo_location("/zoo/").folder == "/zoo");
  CHECK(zoo_location("/zoo/index.json").folder == "/zoo");
  CHECK(zoo_location("file:///my%20zoo").folder == "/my zoo");
  CHECK(zoo_location("file://localhost/zoo").folder == "/zoo");
  CHECK(zoo_location("https://host:1/zoo/index.json").url == "https://host:1/zoo");
  CHECK(zoo_location("hf://a/b/c@v1").url.ends_with("/a/b/resolve/v1/c"));
  for (const char* bad : {"", "file://zoo", "file:///%zz", "file:///%00", "http://", "http:///x", "http://h/?q",
                          "http://h/#f", "http://h/a b", "ftp://h/", "s3://b/k", "https://me:p@host/zoo"}) {
    CHECK_ERROR(zoo_location(bad), UsageError, "--zoo");
  }
}

TEST_CASE("OSCAR_ZOO names the default zoo") {
  ::setenv("OSCAR_ZOO", "/somewhere", 1);
  CHECK(default_zoo() == "/somewhere");
  ::unsetenv("OSCAR_ZOO");
}

}  // namespace oscar
