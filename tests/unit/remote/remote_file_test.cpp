// SPDX-License-Identifier: MIT
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/threads.hpp"
#include "remote/server.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

/// A web server that sends ranges of one body, a connection each.
class TinyServer {
 public:
  explicit TinyServer(std::string body) : body_(std::move(body)), socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(socket_, 16) == 0);
    REQUIRE(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~TinyServer() {
    stop_ = true;
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }

  [[nodiscard]] StoreLocation location() const {
    StoreLocation location;
    location.remote = true;
    location.url = "http://127.0.0.1:" + std::to_string(port_);
    return location;
  }
  std::atomic<int> requests{0};
  std::atomic<std::size_t> sent{0};  // bytes of bodies
  std::atomic<char> version{'v'};
  std::atomic<int> conditions{0};  // requests with If-Match

 private:
  void serve() {
    while (!stop_) {
      const int client = ::accept(socket_, nullptr, nullptr);
      if (client < 0) return;
      answer(client);
      ::close(client);
    }
  }

  void answer(int client) {
    std::string request;
    char buffer[4096];
    while (request.find("\r\n\r\n") == std::string::npos) {
      const ssize_t count = ::recv(client, buffer, sizeof buffer, 0);
      if (count <= 0) return;
      request.append(buffer, static_cast<std::size_t>(count));
    }
    ++requests;
    conditions += request.find("If-Match: \"v\"") != std::string::npos ? 1 : 0;
    unsigned long first = 0, last = 0;
    const std::size_t range = request.find("Range: bytes=");
    if (range == std::string::npos || std::sscanf(&request[range], "Range: bytes=%lu-%lu", &first, &last) != 2) return;
    last = std::min<unsigned long>(last, body_.size() - 1);
    std::string text = "HTTP/1.1 206 Partial\r\nConnection: close\r\nETag: \"" + std::string(1, version) +
                       "\"\r\nContent-Length: " + std::to_string(last + 1 - first) + "\r\nContent-Range: bytes " +
                       std::to_string(first) + "-" + std::to_string(last) + "/" + std::to_string(body_.size()) +
                       "\r\n\r\n";
    text += body_.substr(first, last + 1 - first);
    sent += last + 1 - first;
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t count = ::send(client, &text[sent], text.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<std::size_t>(count);
    }
  }

  std::string body_;
  int socket_;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

std::string sample_body(std::size_t size) {
  std::string body(size, '\0');
  for (std::size_t i = 0; i < size; ++i) body[i] = static_cast<char>(i * 31 + i / 253);
  return body;
}

void touch(const std::byte* place) { (void)*static_cast<const volatile std::byte*>(place); }

}  // namespace

TEST_CASE("a file at a server: addresses for all of it, bytes where they were loaded") {
  const std::string body = sample_body(1'000'003);
  TinyServer web(body);
  Status status;
  Server server(web.location(), {}, status);
  RemoteFile file(server, "x");
  CHECK(web.requests == 0);
  const std::span<const std::byte> bytes = file.bytes();
  CHECK(bytes.size() == body.size());
  CHECK(file.version() == "\"v\"");
  CHECK_FALSE(survives([&] { touch(bytes.data()); }, 10));
  for (const std::size_t front : {std::size_t{8}, std::size_t{100'000}}) {
    file.load_front(front);
    CHECK(std::memcmp(bytes.data(), body.data(), front) == 0);
    const std::size_t pages = (front + 4095) / 4096 * 4096;
    CHECK(survives([&] { touch(&bytes[pages - 1]); }, 10));
    CHECK_FALSE(survives([&] { touch(&bytes[pages]); }, 10));
    CHECK_FALSE(survives([&] { touch(&bytes.back()); }, 10));
  }
  file.load_front(body.size());
  CHECK(std::memcmp(bytes.data(), body.data(), body.size()) == 0);
}

TEST_CASE("what is read of a file at a server is what is there, and not beyond its end") {
  const std::string body = sample_body(1'000'003);
  TinyServer web(body);
  Status status;
  Server server(web.location(), {}, status);
  const RemoteFile file(server, "x");
  std::vector<std::byte> out(1000);
  for (const std::uint64_t offset : {999'003U, 65'000U, 0U}) {
    file.read(offset, out);
    CHECK(std::memcmp(out.data(), body.data() + offset, out.size()) == 0);
  }
  CHECK(web.requests == 3);
  out.resize(10);
  CHECK_ERROR(file.read(body.size() - 9, out), DataError, "ends before its data does");
}

TEST_CASE("to learn a file's size and version a byte is enough") {
  TinyServer web(sample_body(200'000));
  Status status;
  Server server(web.location(), {}, status);
  const RemoteFile file(server, "x");
  CHECK(file.version() == "\"v\"");
  CHECK(file.bytes().size() == 200'000);
  CHECK(web.requests == 1);
  CHECK(web.sent == 1);
}

TEST_CASE("a file at a server is the same one for all that open it") {
  TinyServer web(sample_body(200'000));
  Status status;
  Server server(web.location(), {}, status);
  std::vector<std::byte> out(100'000);
  RemoteFile(server, "x").read(0, out);
  CHECK(web.conditions == 0);
  const RemoteFile again(server, "x");
  CHECK(again.bytes().size() == 200'000);
  CHECK(web.requests == 1);  // for what is known nobody is asked
  again.read(0, out);
  CHECK(web.conditions == 1);
  web.version = 'w';
  const RemoteFile later(server, "x"), other(server, "y");
  CHECK_ERROR(later.read(0, out), Changed, "has changed since this run first read it");
  other.read(0, out);
  CHECK(other.version() == "\"w\"");
}

}  // namespace oscar
