// SPDX-License-Identifier: MIT
#include "kernels/cuda/ingest.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/files.hpp"
#include "kernels/cuda/context.hpp"

namespace oscar::cuda {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{2} << 20;  // what readers hold stays in their caches
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kSlotsPerReader = 2;  // one is filled while the GPU fetches the other
constexpr int kReaders = 12;                // these outrun PCIe 5
constexpr int kOtherThreads = 4;            // the lanes', and what finishes layers

int reader_count() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) - kOtherThreads, 1, kReaders);
}

bool is_pinned(const std::byte* data) {
  cudaPointerAttributes memory{};
  if (cudaPointerGetAttributes(&memory, data) == cudaSuccess) return memory.type == cudaMemoryTypeHost;
  (void)cudaGetLastError();
  return false;
}

}  // namespace

/// Pinned memory for one piece. Registering huge pages takes a tenth of what cudaHostAlloc does.
class Ingest::Slot {
 public:
  Slot() : bytes_(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, kPieceBytes))) {
    if (bytes_ == nullptr) throw std::bad_alloc();
    (void)madvise(bytes_.get(), kPieceBytes, MADV_HUGEPAGE);
    std::memset(bytes_.get(), 0, kPieceBytes);
    const cudaError_t status = cudaHostRegister(bytes_.get(), kPieceBytes, cudaHostRegisterDefault);
    if (status == cudaSuccess) return;
    (void)cudaGetLastError();
    throw BackendUnavailable(std::string("the driver cannot pin host memory: ") + cudaGetErrorString(status), "",
                             "free host memory, or use --device cpu");
  }
  ~Slot() { (void)cudaHostUnregister(bytes_.get()); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  void pass_on(const Piece& piece, cudaStream_t stream) {
    OSCAR_CUDA_TRY(cudaEventSynchronize(fetched_.get()));
    if (piece.file.descriptor >= 0) {
      read_at(piece.file.descriptor, piece.file.offset, {bytes_.get(), piece.bytes});
    } else {
      std::memcpy(bytes_.get(), piece.data, piece.bytes);
    }
    OSCAR_CUDA_TRY(cudaMemcpyAsync(piece.destination, bytes_.get(), piece.bytes, cudaMemcpyHostToDevice, stream));
    OSCAR_CUDA_TRY(cudaEventRecord(fetched_.get(), stream));
  }

 private:
  Event fetched_{cudaEventBlockingSync};  // waiting readers sleep: there are many, and the GPU takes its time
  std::unique_ptr<std::byte, decltype([](std::byte* bytes) { std::free(bytes); })> bytes_;
};

Ingest::Ingest(Device& device) : device_(device) {
  OSCAR_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (int i = 0; i < reader_count(); ++i) {
    readers_.emplace_back([this](const std::stop_token& stop) { read(stop); });
  }
}

Ingest::~Ingest() {
  readers_.clear();  // stops and joins them
  (void)cudaStreamDestroy(stream_);
}

void Ingest::add(Request& request, const HeadsView& rows, std::byte* destination) {
  const auto bytes = static_cast<std::size_t>(rows.num_tokens * rows.bytes_per_token());
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t first = 0; first < bytes; first += kPieceBytes) {
      const FilePlace file{rows.file.descriptor, rows.file.offset + first};
      pieces_.push_back({&request, rows.data + first, file, std::min(kPieceBytes, bytes - first), destination + first});
      ++request.pieces_left;
    }
  }
  more_.notify_all();
}

void Ingest::pass_on(Request& request, const HeadsView& rows, std::byte* destination) {
  const auto bytes = static_cast<std::size_t>(rows.num_tokens * rows.bytes_per_token());
  const std::lock_guard lock(mutex_);
  OSCAR_CUDA_TRY(cudaMemcpyAsync(destination, rows.data, bytes, cudaMemcpyHostToDevice, stream_));
  OSCAR_CUDA_TRY(cudaEventRecord(request.arrived.get(), stream_));
}

void Ingest::wait(const Request& request) {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return request.pieces_left == 0; });
}

void Ingest::read(const std::stop_token& stop) {
  std::array<std::unique_ptr<Slot>, kSlotsPerReader> slots;
  std::size_t next = 0;
  while (const std::optional<Piece> piece = take(stop)) {
    std::exception_ptr error;
    try {
      device_.activate();
      std::unique_ptr<Slot>& slot = slots[next++ % kSlotsPerReader];
      if (slot == nullptr) slot = std::make_unique<Slot>();
      slot->pass_on(*piece, stream_);
    } catch (...) {
      error = std::current_exception();
    }
    finish(*piece, error);
  }
}

std::optional<Ingest::Piece> Ingest::take(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (!more_.wait(lock, stop, [&] { return !pieces_.empty(); })) return std::nullopt;
  const Piece piece = pieces_.front();
  pieces_.pop_front();
  return piece;
}

void Ingest::finish(const Piece& piece, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    Request& request = *piece.request;
    if (--request.pieces_left == 0) {
      // All copies of the request are in the stream by now.
      try {
        OSCAR_CUDA_TRY(cudaEventRecord(request.arrived.get(), stream_));
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (error && !request.error) request.error = error;
  }
  finished_.notify_all();
}

Transfer::Transfer(const Context& context, const HeadsView& rows, std::byte* destination) : context_(context) {
  context.synchronize();
  if (rows.file.descriptor < 0 && is_pinned(rows.data)) {
    context.ingest().pass_on(request_, rows, destination);
  } else {
    context.ingest().add(request_, rows, destination);
  }
}

Transfer::~Transfer() {
  context_.ingest().wait(request_);
  (void)cudaEventSynchronize(request_.arrived.get());  // or the rows or their destination could go too early
}

void Transfer::wait() {
  context_.ingest().wait(request_);
  if (request_.error) std::rethrow_exception(request_.error);
  OSCAR_CUDA_TRY(cudaStreamWaitEvent(context_.stream(), request_.arrived.get()));
}

}  // namespace oscar::cuda
