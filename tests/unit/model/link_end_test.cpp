// SPDX-License-Identifier: MIT
// Links that are slow, silent, broken or cut; between GPUs they are NCCL's.
#include "model/link_end.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <future>

#include "base/clock.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

/// What the test and the link have in common: how the link goes on, and what was asked of it.
struct Wire {
  std::atomic<bool> ready = false, broken = false, aborted = false;
  std::atomic<int> sent = 0, received = 0;
};

class FakeLink : public HiddenLink {
 public:
  explicit FakeLink(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}

  bool is_ready() override {
    if (wire_->broken || wire_->aborted) throw BackendUnavailable("the cable is cut", "", "");
    return wire_->ready;
  }
  std::function<bool()> computed() const override {
    return [] { return true; };
  }
  void send(const Rows&) override { ++wire_->sent; }
  void receive(std::size_t) override { ++wire_->received; }
  std::unique_ptr<Rows> received() override { return std::make_unique<Rows>(); }
  void abort() noexcept override { wire_->aborted = true; }

 private:
  std::shared_ptr<Wire> wire_;
};

struct Link {
  std::shared_ptr<Wire> wire = std::make_shared<Wire>();
  std::promise<std::string> lost;
  std::optional<LinkEnd> end;

  explicit Link(double open_seconds, double reason_seconds = 0) {
    end.emplace(std::make_unique<FakeLink>(wire),
                LinkOptions{.peer = "rank 1 (node7, process 123)",
                            .open_seconds = open_seconds,
                            .reason_seconds = reason_seconds,
                            .lost = [this](const RankFailed& failure) { lost.set_value(failure.what()); }});
  }
};

}  // namespace

TEST_CASE("a link that does not open in time is cut, and names the other end and what to do") {
  Link link(0.1);
  const auto start = std::chrono::steady_clock::now();
  CHECK_ERROR(link.end->wait_until_open(), RankFailed, "rank 1 (node7, process 123) did not open in time");
  CHECK_ERROR(link.end->wait_until_open(), RankFailed, "--join-timeout");
  CHECK(seconds_since(start) < 5);
  CHECK(link.lost.get_future().get().find("rank 1") != std::string::npos);
  link.end.reset();
  CHECK(link.wire->aborted);
}

TEST_CASE("a link opens, passes what is given to it, and is not late afterwards") {
  Link link(0.2);
  link.wire->ready = true;
  link.end->wait_until_open();
  link.end->send(Rows());
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  CHECK(link.end->receive(3) != nullptr);
  link.end->require_whole();
  CHECK(link.wire->sent == 1);
  CHECK(link.wire->received == 1);
  CHECK_FALSE(link.wire->aborted);
}

TEST_CASE("an open link through which nothing comes in time is cut") {
  Link link(0.1);
  link.wire->ready = true;
  link.end->wait_until_open();
  link.wire->ready = false;
  CHECK_ERROR((void)link.end->receive(3), RankFailed, "rank 1 (node7, process 123) opened, but nothing came through");
}

TEST_CASE("a link that is open has more time than one that does not open: who is at fault is named first") {
  Link open(0.2);
  open.wire->ready = true;
  open.end->wait_until_open();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK_NOTHROW(open.end->require_whole());
}

TEST_CASE("a link that breaks ends what waits for it, and what its GPU waits for") {
  Link link(100);
  link.wire->ready = true;
  link.end->wait_until_open();
  link.wire->ready = false;
  auto receiving = std::async(std::launch::async, [&] { return link.end->receive(3); });
  CHECK(receiving.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  link.wire->broken = true;
  CHECK_ERROR(receiving.get(), RankFailed, "rank 1 (node7, process 123) broke: the cable is cut");
  CHECK_ERROR(link.end->require_whole(), RankFailed, "the cable is cut");
  CHECK_ERROR(link.end->send(Rows()), RankFailed, "--resume");
  link.end.reset();
  CHECK(link.wire->aborted);
}

TEST_CASE("a link that breaks while nobody waits is found out all the same, after the other end's time to say why") {
  Link link(100, 0.3);
  link.wire->ready = true;
  link.end->wait_until_open();
  const auto start = std::chrono::steady_clock::now();
  link.wire->broken = true;
  auto lost = link.lost.get_future();
  CHECK(lost.get().find("the cable is cut") != std::string::npos);
  CHECK(seconds_since(start) >= 0.3);
  CHECK_ERROR(link.end->require_whole(), RankFailed, "the cable is cut");
}

TEST_CASE("when all has arrived the other end may go") {
  Link link(100);
  link.wire->ready = true;
  link.end->wait_until_open();
  link.end->finish();
  link.wire->broken = true;
  while (!link.wire->aborted) std::this_thread::yield();
  link.end->require_whole();
}

TEST_CASE("an end that goes does not wait for the other, however long it has time") {
  Link link(100, 100);
  const auto start = std::chrono::steady_clock::now();
  link.end.reset();
  CHECK(link.wire->aborted);
  CHECK(seconds_since(start) < 5);
}

TEST_CASE("a broken link's end goes without the time that the other end has to say why") {
  Link link(100, 100);
  link.wire->broken = true;
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  link.end.reset();
  CHECK(seconds_since(start) < 5);
}

}  // namespace oscar
