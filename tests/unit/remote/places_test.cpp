// SPDX-License-Identifier: MIT
#include "base/places.hpp"

#include <doctest/doctest.h>

#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "remote/network_places.hpp"
#include "support/support.hpp"

namespace oscar {

TEST_CASE("addresses are told from paths") {
  for (const char* place : {"http://h/x", "https://h", "hf://a/b"}) CHECK(is_remote(place));
  for (const char* place : {"", "s3://b/k", "./http://h", "ftp://h", "hf:/a/b"}) {
    CHECK(!is_remote(place));
  }
  CHECK((fs::path("http://b/k") / "config.json").string() == "http://b/k/config.json");
}

TEST_CASE("an address is settled without slashes at its end") {
  NetworkPlaces places;
  CHECK(places.settle("http://host/a/b//") == "http://host/a/b");
  CHECK(places.settle("https://host:1/a%20b/") == "https://host:1/a%20b");
  CHECK(places.settle("hf://org/name") == "hf://org/name@main");
  CHECK(places.settle("hf://org/name/a/b/@refs/pr/1") == "hf://org/name@refs%2Fpr%2F1/a/b");
  CHECK(places.settle("hf://datasets/org/name@v1") == "hf://datasets/org/name@v1");
  for (const char* bad : {"hf://org", "hf://datasets/org", "hf://me@org/name", "http://", "http:///x",
                          "https://h/m?v=1", "http://h/m#x"}) {
    CHECK_THROWS_AS((void)places.settle(bad), UsageError);
  }
}

TEST_CASE("an address with a password is refused, and neither it nor a query is shown") {
  NetworkPlaces places;
  for (const char* bad :
       {"https://me:hidden@host/x", "https://me:hid/den@host/x", "http://hidden@host", "https://host/x?token=hidden"}) {
    try {
      (void)places.settle(bad);
      FAIL(bad);
    } catch (const UsageError& error) {
      for (const std::string& text : {std::string(error.what()), error.where(), error.remedy()}) {
        CHECK(text.find("hid") == std::string::npos);
      }
    }
  }
}

TEST_CASE("a place on the hub is read again as the address that it was made of, with what was appended") {
  const HubAddress address = hub_address_of_place("hf://datasets/org/name@refs%2Fpr%2F1/a/config.json");
  CHECK(address.repository == "datasets/org/name");
  CHECK(address.revision == "refs/pr/1");
  CHECK(address.folder == "a/config.json");
  CHECK(hub_address_of_place(address.place()).text() == "hf://datasets/org/name/a/config.json@refs/pr/1");
}

TEST_CASE("what is on disk needs nobody who reads addresses") {
  const test::TemporaryFolder folder;
  write_file(folder / "a", "hello");
  set_remote_places(nullptr);
  CHECK(place_text(folder / "a") == "hello");
  CHECK(!optional_text(folder / "b"));
  const auto file = open_place(folder / "a");
  std::array<std::byte, 2> two{};
  file->read(3, two);
  CHECK(static_cast<char>(two[1]) == 'o');
  CHECK(file->descriptor() >= 0);
  CHECK_ERROR((void)place_text("http://b/k"), BackendUnavailable, "reads no addresses");
}

}  // namespace oscar
