// SPDX-License-Identifier: MIT
// Rows on their way from files or host memory to the GPU. Reader threads copy pieces into pinned memory of their own,
// from where the GPU fetches one while the next is read: files in the page cache arrive as fast as the wires carry.
// Only what a verb has asked for is under way, so what is larger than memory passes through. What lies in pinned memory
// already goes from there. Non-goal: the way back.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "kernels/cuda/device.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

class Context;

/// A point in a stream's work.
class Event {
 public:
  explicit Event(unsigned flags = 0) {
    OSCAR_CUDA_TRY(cudaEventCreateWithFlags(&event_, flags | cudaEventDisableTiming));
  }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// The readers of one GPU.
class Ingest {
 public:
  explicit Ingest(Device& device);
  ~Ingest();
  Ingest(const Ingest&) = delete;
  Ingest& operator=(const Ingest&) = delete;

 private:
  friend class Transfer;
  /// What one Transfer asked for.
  struct Request {
    std::size_t pieces_left = 0;
    std::exception_ptr error;
    Event arrived;  // recorded when pieces_left becomes 0
  };
  struct Piece {
    Request* request;
    const std::byte* data;
    FilePlace file;  // read from here if it is a file, else from `data`
    std::size_t bytes;
    std::byte* destination;
  };
  class Slot;

  void add(Request& request, const HeadsView& rows, std::byte* destination);
  /// Of rows in pinned memory, which need no reader.
  void pass_on(Request& request, const HeadsView& rows, std::byte* destination);
  void wait(const Request& request);
  void read(const std::stop_token& stop);
  [[nodiscard]] std::optional<Piece> take(const std::stop_token& stop);
  void finish(const Piece& piece, std::exception_ptr error);

  Device& device_;
  cudaStream_t stream_ = nullptr;  // all copies, one after the other
  std::mutex mutex_;
  std::condition_variable_any more_;
  std::condition_variable finished_;
  std::deque<Piece> pieces_;
  std::vector<std::jthread> readers_;
};

/// The bytes of some rows on their way to the GPU.
class Transfer {
 public:
  /// Starts when what `context` has launched is over, so that `destination` may be what a chunk before has used.
  /// `rows` and `destination` must outlive this.
  Transfer(const Context& context, const HeadsView& rows, std::byte* destination);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// What `context` launches from now on finds the bytes there. Throws DataError if the file has become shorter.
  void wait();

 private:
  const Context& context_;
  Ingest::Request request_;
};

}  // namespace oscar::cuda
