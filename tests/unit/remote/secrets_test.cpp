// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "remote/transport.hpp"

using oscar::may_see_secrets;

TEST_CASE("secrets go over TLS or to this machine, with a port or without") {
  for (const char* url :
       {"https://a.example/x", "http://localhost", "http://localhost/v1", "http://127.0.0.1:80", "http://[::1]/"}) {
    CHECK(may_see_secrets(url));
  }
  for (const char* url : {"http://a.example", "http://localhost.evil.example/", "http://127.0.0.1.evil.example",
                          "http://127.0.0.12/", "http://[::1", "file:///x"}) {
    CHECK_FALSE(may_see_secrets(url));
  }
}
