// SPDX-License-Identifier: MIT
// Chunks of a dump at a server, in memory: while one is in use, the next ones of its layer and those of the layer after
// it come in, as long as there is room. What was read stays for the next pass over it as long as it can. Memory is
// limited, but for the chunks in use and the next one of each layer that is open. Non-goal: chunks on disk, which are
// mapped.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "dump/chunk_rows.hpp"

namespace oscar {

class RemoteChunks {
 public:
  using Plan = std::function<std::vector<DumpChunk>(int layer_id)>;
  /// layer_ids: in the order in which they will be opened, unless expect() says otherwise. plan: the chunks of a layer;
  /// called by any thread.
  RemoteChunks(std::vector<int> layer_ids, Plan plan, std::uint64_t memory_bytes);
  ~RemoteChunks();
  RemoteChunks(const RemoteChunks&) = delete;
  RemoteChunks& operator=(const RemoteChunks&) = delete;

  void expect(std::vector<int> layer_ids);
  /// Says that only chunks [first, last) of this layer are to be read ahead.
  void expect_part(int layer_id, std::size_t first, std::size_t last);
  /// Ends reading ahead and planning, at once.
  void stop();
  /// Says that somebody is going to read this layer, and calls close() when done. Any number may at the same time.
  void open(int layer_id);
  void close(int layer_id);
  /// Says that who was going to read this layer does not: what was read ahead of it may make room.
  void pass_over(int layer_id);
  /// Returns the plan of a layer; nothing is read yet.
  [[nodiscard]] std::vector<DumpChunk> chunks(int layer_id);
  /// Returns the rows of a chunk of an open layer, waiting for them. Throws what reading threw, and what
  /// throw_if_interrupted() throws.
  [[nodiscard]] std::shared_ptr<const ChunkRows> get(int layer_id, std::size_t index);

 private:
  enum class State { kAbsent, kLoading, kReady, kFailed };
  struct Slot {
    DumpChunk chunk;
    ChunkRows::Files files;  // kept: they notice if a file changes
    State state = State::kAbsent;
    std::shared_ptr<const ChunkRows> rows;
    std::exception_ptr failure;
    std::uint64_t last_use = 0;  // 0: not yet used
  };
  struct Layer {
    std::vector<Slot> slots;
    int readers = 0;
    bool ahead = false;                      // nobody reads it yet, but that is next
    std::size_t current = 0;                 // that was asked for last
    std::size_t first = 0, last = SIZE_MAX;  // that are read ahead
    [[nodiscard]] std::size_t end() const { return std::min(last, slots.size()); }
  };
  enum class Room { kSpare, kNeeded };

  void work();
  [[nodiscard]] Layer& plan(std::unique_lock<std::mutex>& lock, int layer_id);
  [[nodiscard]] Slot* next_slot();
  [[nodiscard]] std::optional<int> next_layer() const;
  void load(std::unique_lock<std::mutex>& lock, Slot& slot);
  bool make_room(std::uint64_t bytes, Room room);
  [[nodiscard]] Slot* least_missed(Room room);

  std::vector<int> layer_ids_;
  const Plan plan_;
  const std::uint64_t limit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Layer> layers_;  // that are planned; never removed
  std::uint64_t held_ = 0, uses_ = 0;
  std::atomic<bool> stop_ = false;
  std::array<std::thread, 2> workers_;
};

}  // namespace oscar
