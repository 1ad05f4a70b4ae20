// SPDX-License-Identifier: MIT
#include "remote/fetch.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "support/support.hpp"

namespace oscar {
namespace {

/// Serves one file in pieces. Every third answer breaks off, if it is told to.
class FakeTransport : public Transport {
 public:
  explicit FakeTransport(std::size_t size) : body(size) {
    for (std::size_t i = 0; i < size; ++i) body[i] = static_cast<std::byte>(i * 7 + i / 251);
  }

  void run(const RequestSource& source) override {
    while (!source.finished()) {
      if (const auto request = source.next()) answer(*request);
    }
  }
  [[nodiscard]] int concurrency() const override { return 4; }
  [[nodiscard]] std::string where(const std::string& path) const override { return "fake/" + path; }

  std::vector<std::byte> body;
  std::string version = "\"1\"";
  bool breaks = false, whole = false;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> asked;
  std::vector<std::string> conditions;

 private:
  void answer(const Request& request) {
    asked.emplace_back(request.offset, request.length.value());
    conditions.push_back(request.if_match);
    const std::uint64_t offset = whole ? 0 : request.offset;
    const std::uint64_t length = whole ? body.size() : std::min<std::uint64_t>(*request.length, body.size() - offset);
    try {
      request.begin({!whole, offset, body.size(), version});
      const bool broken = breaks && asked.size() % 3 == 0;
      request.sink(std::span(body).subspan(offset, broken ? length / 2 : length));
      if (broken) throw TransientError("the line was cut", "fake", "");
    } catch (...) {
      return request.done(std::current_exception());
    }
    request.done(nullptr);
  }
};

constexpr std::size_t kSize = std::size_t{20} << 20;
const TransferOptions kQuick{.retries = 3, .first_pause_seconds = 0.001};

void read(FakeTransport& transport, RemoteObject& object, std::uint64_t offset, std::span<std::byte> to) {
  Status status;
  const RangeRequest request{&object, offset, to};
  read_ranges(transport, {&request, 1}, kQuick, status);
}

}  // namespace

TEST_CASE("a range comes in pieces, whatever breaks off on the way") {
  for (const bool breaks : {false, true}) {
    FakeTransport transport(kSize);
    transport.breaks = breaks;
    RemoteObject object("a");
    std::vector<std::byte> out(kSize - 100);
    read(transport, object, 50, out);
    CHECK(std::memcmp(out.data(), transport.body.data() + 50, out.size()) == 0);
    CHECK(object.size() == kSize);
    CHECK(transport.asked.size() >= 4);
    CHECK(transport.conditions.front().empty());
    CHECK(transport.conditions.back() == "\"1\"");
  }
}

TEST_CASE("a file that is shorter than what is asked of it is an error") {
  FakeTransport transport(1000);
  RemoteObject object("a");
  std::vector<std::byte> out(1500);
  CHECK_ERROR(read(transport, object, 200, out), DataError, "ends before its data does");
}

TEST_CASE("another version, whole files and answers about something else are errors") {
  FakeTransport transport(1000);
  RemoteObject object("a");
  std::vector<std::byte> out(100);
  read(transport, object, 0, out);
  transport.version = "\"2\"";
  CHECK_ERROR(read(transport, object, 0, out), Changed, "has changed");
  transport.version = "\"1\"";
  transport.body.resize(999);
  CHECK_ERROR(read(transport, object, 0, out), Changed, "has changed");
  CHECK_ERROR(object.learn({false, 0, std::nullopt, "\"2\""}, "here"), Changed, "has changed");
  object.learn({false, 0, std::nullopt, "\"1\""}, "here");
  RemoteObject other("b");
  transport.whole = true;
  CHECK_ERROR(read(transport, other, 0, out), TransportError, "whole files only");
  CHECK_ERROR(read(transport, other, 10, out), TransportError, "whole files only");
  CHECK_ERROR(other.learn({true, 5, 1000, ""}, 4, 10, "here"), TransportError, "the range that was asked for");
  CHECK_ERROR(other.learn({true, 4, std::nullopt, ""}, 4, 10, "here"), TransportError, "the range that was asked for");
}

TEST_CASE("a server that sends a small file whole has sent the range") {
  FakeTransport transport(1000);
  transport.whole = true;
  RemoteObject object("a");
  std::vector<std::byte> out(1000);
  read(transport, object, 0, out);
  CHECK(out == transport.body);
}

}  // namespace oscar
