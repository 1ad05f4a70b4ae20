// SPDX-License-Identifier: MIT
#include "model/decoder_torch/fetch.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <array>
#include <future>
#include <optional>
#include <thread>

#include "base/errors.hpp"

namespace oscar {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{8} << 20;
constexpr std::size_t kReaders = 8;

at::ScalarType stored_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
    case DType::kF8E4M3:
      return at::kFloat8_e4m3fn;
    case DType::kU8:
      return at::kByte;
    default:
      throw DataError("weights of " + std::string(name_of(dtype)) + " cannot be computed with", "", "");
  }
}

std::size_t reader_count(std::size_t pieces, int wanted) {
  if (wanted > 0) return std::min(pieces, static_cast<std::size_t>(wanted));
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  return std::min({pieces, std::max<std::size_t>(1, cores / 2), kReaders});
}

}  // namespace

TensorRef slice(const TensorRef& stack, int index) {
  const std::size_t bytes = stack.data.size() / static_cast<std::size_t>(stack.shape[0]);
  return {stack.dtype,
          {stack.shape.begin() + 1, stack.shape.end()},
          stack.data.subspan(static_cast<std::size_t>(index) * bytes, bytes)};
}

at::Tensor Fetch::want(const TensorRef& part) {
  const std::vector<std::int64_t> shape = part.shape.empty() ? std::vector<std::int64_t>{1} : part.shape;
  at::Tensor tensor = at::empty(shape, at::TensorOptions(stored_type(part.dtype)).device(device_.place()));
  auto* const to = static_cast<std::byte*>(tensor.data_ptr());
  for (std::size_t begin = 0; begin < part.data.size(); begin += kPieceBytes) {
    pieces_.push_back({part.data.subspan(begin, std::min(kPieceBytes, part.data.size() - begin)), to + begin});
  }
  return tensor;
}

void Fetch::run() {
  const std::size_t readers = reader_count(pieces_.size(), store_.readers());
  const auto work = [&](std::size_t first) {
    const CallGuard guard(device_);
    if (device_.is_gpu()) return upload(first, readers);
    for (std::size_t i = first; i < pieces_.size(); i += readers) read_to_host(pieces_[i]);
  };
  std::vector<std::future<void>> others;
  for (std::size_t first = 1; first < readers; ++first) others.push_back(std::async(std::launch::async, work, first));
  if (readers > 0) work(0);
  for (std::future<void>& other : others) other.get();
  pieces_.clear();
}

/// Every `step`-th piece, through two places in pinned memory: one is filled while the other is on its way.
void Fetch::upload(std::size_t first, std::size_t step) const {
  const c10::Stream stream = device_.new_stream();
  const c10::StreamGuard guard(stream);
  std::array<at::Tensor, 2> slots;
  std::array<std::optional<c10::Event>, 2> sent;
  std::size_t turn = 0;
  for (std::size_t i = first; i < pieces_.size(); i += step, turn = 1 - turn) {
    const auto size = static_cast<std::int64_t>(pieces_[i].from.size());
    at::Tensor& slot = slots[turn];
    if (!slot.defined()) slot = device_.host_bytes(kPieceBytes);
    if (sent[turn]) sent[turn]->synchronize();
    store_.read(pieces_[i].from, static_cast<std::byte*>(slot.data_ptr()));
    at::from_blob(pieces_[i].to, {size}, at::TensorOptions(at::kByte).device(device_.place()))
        .copy_(slot.narrow(0, 0, size), /*non_blocking=*/true);
    if (!sent[turn]) sent[turn].emplace(device_.place().type());
    sent[turn]->record(stream);
  }
  stream.synchronize();
}

}  // namespace oscar
