// SPDX-License-Identifier: MIT
#include "dump/remote_chunks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "base/check.hpp"
#include "base/files.hpp"
#include "base/stop.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kChunkTokens = 100,
                       kBytes = kChunkTokens * 4 * 4 * 4;  // of a chunk: 2 + 1 + 1 heads of 4 floats

/// Files whose bytes are their offsets, at a server that is asked for them in memory.
class FakePlaces : public RemotePlaces {
 public:
  FakePlaces() { set_remote_places(this); }
  ~FakePlaces() override { set_remote_places(nullptr); }

  struct File : PlacedFile {
    explicit File(std::string path_) : path(std::move(path_)) {}
    [[nodiscard]] std::span<const std::byte> bytes() const override { return {}; }
    void load_front(std::uint64_t) override {}
    void read(std::uint64_t, std::span<std::byte>) const override { OSCAR_CHECK(false); }
    [[nodiscard]] int descriptor() const override { return -1; }
    [[nodiscard]] std::string version() const override { return ""; }
    [[nodiscard]] int readers() const override { return 1; }
    std::string path;
  };

  [[nodiscard]] fs::path settle(const std::string& place) override { return place; }
  [[nodiscard]] std::string text(const fs::path&) override { return ""; }
  [[nodiscard]] std::optional<std::string> optional_text(const fs::path&) override { return ""; }
  [[nodiscard]] bool exists(const fs::path&) override { return false; }
  [[nodiscard]] std::optional<std::vector<std::string>> list(const fs::path&) override { return std::nullopt; }
  [[nodiscard]] std::unique_ptr<PlacedFile> open(const fs::path& file) override {
    return std::make_unique<File>(file.string());
  }
  void read(std::span<const FilePart> parts) override {
    const std::string& path = static_cast<const File&>(*parts.front().file).path;
    ++asked;
    while (stuck) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (path == broken) throw TransportError("broken", path, "");
    for (const FilePart& part : parts) std::memset(part.to.data(), static_cast<int>(part.offset), part.to.size());
    const std::lock_guard lock(mutex_);
    reads_.push_back(path);
  }

  /// In order.
  [[nodiscard]] std::vector<std::string> reads() {
    const std::lock_guard lock(mutex_);
    return reads_;
  }
  /// Waits until nothing more is read.
  [[nodiscard]] std::vector<std::string> settled() {
    for (std::size_t before = SIZE_MAX; before != reads().size();) {
      before = reads().size();
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
    return reads();
  }
  std::string broken;
  std::atomic<bool> stuck = false;
  std::atomic<int> asked = 0;

 private:
  std::mutex mutex_;
  std::vector<std::string> reads_;
};

std::string name_of(int layer, int chunk) { return "s3://b/" + std::to_string(layer) + "/" + std::to_string(chunk); }

std::vector<DumpChunk> plan(int layer) {
  std::vector<DumpChunk> chunks;
  for (int i = 0; i < 3; ++i) {
    const auto tensor = [&](std::int64_t heads, std::uint64_t offset) {
      return ChunkTensor{name_of(layer, i), {DType::kF32, {kChunkTokens, heads, 4}, offset}};
    };
    chunks.push_back({i, tensor(2, 1), tensor(1, 2), tensor(1, 3), {40, 60}});
  }
  return chunks;
}

void read_all(RemoteChunks& chunks, int layer) {
  for (std::size_t i = 0; i < 3; ++i) {
    const auto rows = chunks.get(layer, i);
    const QkvView& view = rows->view();
    CHECK(view.q.num_tokens == kChunkTokens);
    CHECK(view.q.num_heads == 2);
    CHECK(static_cast<int>(view.q.data[view.q.bytes_per_token() * kChunkTokens - 1]) == 1);
    CHECK(static_cast<int>(view.k.data[0]) == 2);
    CHECK(static_cast<int>(view.v.data[view.v.bytes_per_token() * kChunkTokens - 1]) == 3);
  }
}

std::vector<std::string> names(std::initializer_list<std::pair<int, int>> chunks) {
  std::vector<std::string> result;
  for (const auto& [layer, chunk] : chunks) result.push_back(name_of(layer, chunk));
  return result;
}

}  // namespace

TEST_CASE("a layer comes once for all passes, and the next one behind it") {
  FakePlaces places;
  RemoteChunks chunks({0, 5, 9}, plan, 6 * kBytes);
  chunks.open(0);
  read_all(chunks, 0);
  read_all(chunks, 0);
  std::vector<std::string> reads = places.settled();
  std::sort(reads.begin(), reads.end());
  CHECK(reads == names({{0, 0}, {0, 1}, {0, 2}, {5, 0}, {5, 1}, {5, 2}}));
  chunks.close(0);
  chunks.open(5);
  read_all(chunks, 5);
  CHECK(places.settled().size() == 9);
}

TEST_CASE("with little memory a layer comes again for each pass, but for what fits") {
  FakePlaces places;
  RemoteChunks chunks({0, 5}, plan, 2 * kBytes);
  chunks.open(0);
  read_all(chunks, 0);
  const std::size_t first = places.settled().size();
  CHECK(first == 3);  // nothing of layer 5
  read_all(chunks, 0);
  const std::size_t second = places.settled().size();
  CHECK(second > first);
  CHECK(second < 2 * first);  // one stayed
}

TEST_CASE("of a dump that hardly fits most stays for the next time it is read") {
  FakePlaces places;
  RemoteChunks chunks({0, 5, 9}, plan, 7 * kBytes);
  std::size_t before = 0;
  for (int time = 0; time < 3; ++time) {
    for (const int layer : {0, 5, 9}) {
      chunks.open(layer);
      read_all(chunks, layer);
      chunks.close(layer);
    }
    const std::size_t reads = places.settled().size();
    CHECK(reads - before <= (time == 0 ? 9 : 5));  // where the oldest goes first, all nine come each time
    before = reads;
  }
}

TEST_CASE("layers are read ahead in the order that is expected") {
  FakePlaces places;
  RemoteChunks chunks({0, 5, 9}, plan, 6 * kBytes);
  chunks.expect(std::vector<int>{0, 9});
  chunks.open(0);
  read_all(chunks, 0);
  std::vector<std::string> reads = places.settled();
  std::sort(reads.begin(), reads.end());
  CHECK(reads == names({{0, 0}, {0, 1}, {0, 2}, {9, 0}, {9, 1}, {9, 2}}));
}

TEST_CASE("of a layer of which a part is expected no other part is read ahead") {
  FakePlaces places;
  RemoteChunks chunks({0, 5}, plan, 6 * kBytes);
  chunks.expect_part(0, 1, 2);
  chunks.expect_part(5, 0, 2);
  chunks.open(0);
  std::vector<std::string> reads = places.settled();
  std::sort(reads.begin(), reads.end());
  CHECK(reads == names({{0, 1}, {5, 0}, {5, 1}}));
  CHECK(chunks.get(0, 1) != nullptr);
  CHECK(places.settled().size() == 3);
  CHECK(chunks.get(0, 0) != nullptr);  // whoever asks nevertheless gets it
  CHECK(places.settled().size() == 4);
}

TEST_CASE("what was read ahead in vain makes room first") {
  FakePlaces places;
  RemoteChunks chunks({0}, plan, 3 * kBytes);
  chunks.open(0);
  CHECK(places.settled().size() == 3);
  CHECK(chunks.get(0, 0) != nullptr);
  chunks.close(0);
  for (const int layer : {0, 9}) chunks.expect_part(layer, 0, 0);
  chunks.open(9);
  CHECK(chunks.get(9, 0) != nullptr);
  chunks.open(0);
  CHECK(chunks.get(0, 0) != nullptr);
  CHECK(places.settled().size() == 4);
}

TEST_CASE("a layer that was expected and is passed over makes room") {
  FakePlaces places;
  RemoteChunks chunks({0, 5}, plan, 4 * kBytes);
  chunks.open(0);
  read_all(chunks, 0);
  CHECK(places.settled().size() == 4);  // one of layer 5
  chunks.expect({});
  chunks.pass_over(5);
  chunks.close(0);  // only now: before, more of layer 5 would take its room
  for (const int layer : {0, 9}) chunks.expect_part(layer, 0, 0);
  chunks.open(9);
  CHECK(chunks.get(9, 0) != nullptr);
  chunks.open(0);
  read_all(chunks, 0);
  CHECK(places.settled().size() == 5);
}

TEST_CASE("a wait for what is read ahead ends with the work that waits") {
  FakePlaces places;
  places.stuck = true;
  RemoteChunks chunks({0}, plan, 6 * kBytes);
  chunks.open(0);
  while (places.asked == 0) std::this_thread::yield();
  const std::atomic<bool> stop = true;
  {
    const StopScope scope(stop);
    CHECK_THROWS_AS(chunks.get(0, 0), Interrupted);
  }
  places.stuck = false;
  CHECK(chunks.get(0, 0) != nullptr);
}

TEST_CASE("any number of layers may be open, each read by another thread") {
  FakePlaces places;
  RemoteChunks chunks({0, 5, 9}, plan, 1);
  std::vector<std::thread> threads;
  for (const int layer : {0, 5, 9}) {
    threads.emplace_back([&, layer] {
      chunks.open(layer);
      for (int pass = 0; pass < 20; ++pass) read_all(chunks, layer);
      chunks.close(layer);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> reads = places.settled();
  CHECK(std::set<std::string>(reads.begin(), reads.end()).size() == 9);
}

TEST_CASE("what goes wrong ahead of need is said when it is needed") {
  FakePlaces places;
  places.broken = name_of(0, 1);
  RemoteChunks chunks({0}, plan, 6 * kBytes);
  chunks.open(0);
  (void)chunks.get(0, 0);
  (void)places.settled();
  CHECK_ERROR(chunks.get(0, 1), TransportError, "broken");
  CHECK_ERROR(chunks.get(0, 1), TransportError, "broken");
  places.broken.clear();
  CHECK(chunks.get(0, 1) != nullptr);
}

}  // namespace oscar
