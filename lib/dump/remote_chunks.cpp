// SPDX-License-Identifier: MIT
#include "dump/remote_chunks.hpp"

#include <chrono>

#include "base/check.hpp"
#include "base/status.hpp"
#include "base/stop.hpp"

namespace oscar {

RemoteChunks::RemoteChunks(std::vector<int> layer_ids, Plan plan, std::uint64_t memory_bytes)
    : layer_ids_(std::move(layer_ids)), plan_(std::move(plan)), limit_(memory_bytes) {
  // While one chunk ends, and some of its connections are idle, another one begins.
  for (std::thread& worker : workers_) worker = std::thread([this] { work(); });
}

RemoteChunks::~RemoteChunks() { stop(); }

void RemoteChunks::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) {
    if (worker.joinable()) worker.join();
  }
}

/// What there is of a layer; asks without the lock if it has to.
RemoteChunks::Layer& RemoteChunks::plan(std::unique_lock<std::mutex>& lock, int layer_id) {
  if (!layers_.contains(layer_id)) {
    lock.unlock();
    std::vector<Slot> slots;
    for (DumpChunk& chunk : plan_(layer_id)) {
      Slot& slot = slots.emplace_back();
      slot.files = ChunkRows::files_of(chunk);
      slot.chunk = std::move(chunk);
    }
    lock.lock();
    if (!layers_.contains(layer_id)) layers_[layer_id].slots = std::move(slots);  // or another thread was faster
  }
  return layers_.at(layer_id);
}

void RemoteChunks::expect(std::vector<int> layer_ids) {
  const std::lock_guard lock(mutex_);
  layer_ids_ = std::move(layer_ids);
}

void RemoteChunks::expect_part(int layer_id, std::size_t first, std::size_t last) {
  std::unique_lock lock(mutex_);
  Layer& layer = plan(lock, layer_id);
  layer.first = first;
  layer.last = last;
}

void RemoteChunks::open(int layer_id) {
  std::unique_lock lock(mutex_);
  Layer& layer = plan(lock, layer_id);
  ++layer.readers;
  layer.ahead = false;
  changed_.notify_all();
}

void RemoteChunks::close(int layer_id) {
  const std::lock_guard lock(mutex_);
  --layers_.at(layer_id).readers;
  changed_.notify_all();
}

void RemoteChunks::pass_over(int layer_id) {
  const std::lock_guard lock(mutex_);
  layers_.at(layer_id).ahead = false;
}

std::vector<DumpChunk> RemoteChunks::chunks(int layer_id) {
  std::unique_lock lock(mutex_);
  std::vector<DumpChunk> all;
  for (const Slot& slot : plan(lock, layer_id).slots) all.push_back(slot.chunk);
  return all;
}

std::shared_ptr<const ChunkRows> RemoteChunks::get(int layer_id, std::size_t index) {
  std::unique_lock lock(mutex_);
  Layer& layer = layers_.at(layer_id);
  Slot& slot = layer.slots.at(index);
  layer.current = index;
  while (slot.state == State::kLoading) {
    throw_if_interrupted();
    changed_.wait_for(lock, std::chrono::milliseconds(50));
  }
  if (slot.state == State::kFailed) slot.state = State::kAbsent;  // ahead of need: once more, now that it is needed
  if (slot.state == State::kAbsent) {
    (void)make_room(ChunkRows::bytes_of(slot.chunk), Room::kNeeded);
    load(lock, slot);
  }
  if (slot.state == State::kFailed) {
    slot.state = State::kAbsent;
    std::rethrow_exception(std::exchange(slot.failure, nullptr));
  }
  slot.last_use = ++uses_;
  changed_.notify_all();
  return slot.rows;
}

/// Reads without the lock, and has it again at the end.
void RemoteChunks::load(std::unique_lock<std::mutex>& lock, Slot& slot) {
  const std::uint64_t bytes = ChunkRows::bytes_of(slot.chunk);
  slot.state = State::kLoading;
  slot.last_use = 0;
  held_ += bytes;
  lock.unlock();
  std::shared_ptr<const ChunkRows> rows;
  std::exception_ptr failure;
  try {
    rows = std::make_shared<const ChunkRows>(slot.chunk, slot.files);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  slot.state = failure == nullptr ? State::kReady : State::kFailed;
  slot.rows = std::move(rows);
  slot.failure = std::move(failure);
  if (slot.rows == nullptr) held_ -= bytes;
  changed_.notify_all();
}

/// Reads ahead of need, one chunk at a time.
void RemoteChunks::work() {
  const StopScope scope(stop_);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (Slot* slot = next_slot()) {
      load(lock, *slot);
    } else if (const auto layer_id = next_layer()) {
      try {
        (void)plan(lock, *layer_id);
        if (next_layer() == layer_id) layers_.at(*layer_id).ahead = true;  // it may have been opened meanwhile
      } catch (...) {
        return;  // open() will meet the same, and says it
      }
    } else {
      changed_.wait(lock);
    }
  }
}

/// The chunk after one in use comes first; others only if there is room to spare.
RemoteChunks::Slot* RemoteChunks::next_slot() {
  for (auto& [id, layer] : layers_) {
    const std::size_t next = layer.current + 1;
    if (layer.readers == 0 || next >= layer.end() || layer.slots[next].state != State::kAbsent) continue;
    if (layer.slots[layer.current].last_use == 0) continue;  // itself still on its way
    (void)make_room(ChunkRows::bytes_of(layer.slots[next].chunk), Room::kNeeded);
    return &layer.slots[next];
  }
  for (auto& [id, layer] : layers_) {
    if (layer.readers == 0 && !layer.ahead) continue;
    for (std::size_t i = layer.first; i < layer.end(); ++i) {
      Slot& slot = layer.slots[i];
      if (slot.state != State::kAbsent) continue;
      return make_room(ChunkRows::bytes_of(slot.chunk), Room::kSpare) ? &slot : nullptr;
    }
  }
  return nullptr;
}

/// The one after the last that is open, if it is not read ahead yet.
std::optional<int> RemoteChunks::next_layer() const {
  auto next = layer_ids_.end();
  for (auto id = layer_ids_.begin(); id != layer_ids_.end(); ++id) {
    const auto layer = layers_.find(*id);
    if (layer != layers_.end() && layer->second.readers > 0) next = std::next(id);
  }
  if (next == layer_ids_.end()) return std::nullopt;
  const auto layer = layers_.find(*next);
  return layer != layers_.end() && layer->second.ahead ? std::nullopt : std::optional(*next);
}

/// Kept rows that nobody holds, the one that will be missed least. Layers are read in order, and so are the chunks of
/// each, perhaps again and again: what was used last is needed last. Layers that are done with go before open ones, and
/// what nobody used of them, in vain read ahead, before all.
RemoteChunks::Slot* RemoteChunks::least_missed(Room room) {
  const auto less_missed = [](const Slot& a, const Slot* b) {
    if (b == nullptr || a.last_use == 0) return true;
    return b->last_use != 0 && a.last_use > b->last_use;
  };
  Slot *done_with = nullptr, *open = nullptr;
  for (auto& [id, layer] : layers_) {
    for (Slot& slot : layer.slots) {
      const bool awaited = layer.ahead || (layer.readers > 0 && slot.last_use == 0);
      if (slot.state != State::kReady || awaited || slot.rows.use_count() > 1) continue;
      if (layer.readers == 0) {
        if (less_missed(slot, done_with)) done_with = &slot;
      } else if (less_missed(slot, open)) {
        open = &slot;
      }
    }
  }
  return done_with != nullptr || room == Room::kSpare ? done_with : open;
}

/// False: there is none, and kSpare asks for no more than that.
bool RemoteChunks::make_room(std::uint64_t bytes, Room room) {
  while (held_ + bytes > limit_) {
    Slot* slot = least_missed(room);
    if (slot == nullptr) return false;
    held_ -= ChunkRows::bytes_of(slot->chunk);
    slot->rows.reset();
    slot->state = State::kAbsent;
  }
  return true;
}

}  // namespace oscar
