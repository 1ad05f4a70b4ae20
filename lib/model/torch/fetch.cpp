// SPDX-License-Identifier: MIT
#include "model/torch/fetch.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "base/errors.hpp"
#include "model/torch/weights.hpp"

namespace oscar {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{2} << 20;        // what readers hold stays in their caches
constexpr std::size_t kRemotePieceBytes = std::size_t{8} << 20;  // each is a request
constexpr std::size_t kReaders = 8;

std::size_t reader_count(std::size_t pieces, int wanted) {
  if (wanted > 0) return std::min(pieces, static_cast<std::size_t>(wanted));
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  return std::min({pieces, std::max<std::size_t>(1, cores / 2), kReaders});
}

}  // namespace

at::ScalarType stored_type(DType dtype) {
  static const std::map<DType, at::ScalarType> types{{DType::kF32, at::kFloat},
                                                     {DType::kBF16, at::kBFloat16},
                                                     {DType::kF16, at::kHalf},
                                                     {DType::kF8E4M3, at::kFloat8_e4m3fn},
                                                     {DType::kF8E5M2, at::kFloat8_e5m2},
                                                     {DType::kE8M0, at::kFloat8_e8m0fnu},
                                                     {DType::kU8, at::kByte}};
  const auto found = types.find(dtype);
  if (found != types.end()) return found->second;
  throw DataError("weights of " + std::string(name_of(dtype)) + " cannot be computed with", "", "");
}

TensorRef slice(const TensorRef& stack, int index) {
  const std::size_t bytes = stack.data.size() / static_cast<std::size_t>(stack.shape[0]);
  return {stack.dtype,
          {stack.shape.begin() + 1, stack.shape.end()},
          stack.data.subspan(static_cast<std::size_t>(index) * bytes, bytes)};
}

Fetch::Fetch(const WeightStore& store, const Device& device)
    : store_(store), device_(device), piece_bytes_(store.readers() > 0 ? kRemotePieceBytes : kPieceBytes) {}

at::Tensor Fetch::want(const TensorRef& part) {
  const std::vector<std::int64_t> shape = part.shape.empty() ? std::vector<std::int64_t>{1} : part.shape;
  at::Tensor tensor = at::empty(shape, at::TensorOptions(stored_type(part.dtype)).device(device_.place()));
  auto* const to = static_cast<std::byte*>(tensor.data_ptr());
  for (std::size_t begin = 0; begin < part.data.size(); begin += piece_bytes_) {
    pieces_.push_back({part.data.subspan(begin, std::min(piece_bytes_, part.data.size() - begin)), to + begin});
  }
  return tensor;
}

void Fetch::run() {
  const std::size_t readers = reader_count(pieces_.size(), store_.readers());
  std::atomic<std::size_t> next = 0;  // pieces differ in size by a thousand times
  const auto take = [&]() -> const Piece* {
    const std::size_t i = next++;
    return i < pieces_.size() ? &pieces_[i] : nullptr;
  };
  const auto work = [&] {
    const CallGuard guard(device_);
    if (device_.is_gpu()) return upload(take);
    while (const Piece* piece = take()) store_.read(piece->from, piece->to);
  };
  std::vector<std::future<void>> others;
  for (std::size_t i = 1; i < readers; ++i) others.push_back(std::async(std::launch::async, work));
  if (readers > 0) work();
  for (std::future<void>& other : others) other.get();
  pieces_.clear();
}

/// Pieces that take() gives, through two places in pinned memory: one is filled while the other is on its way.
void Fetch::upload(const std::function<const Piece*()>& take) const {
  const c10::Stream stream = device_.new_stream();
  const c10::StreamGuard guard(stream);
  std::array<at::Tensor, 2> slots;
  std::array<std::optional<c10::Event>, 2> sent;
  std::size_t turn = 0;
  for (const Piece* piece = take(); piece != nullptr; piece = take(), turn = 1 - turn) {
    const auto size = static_cast<std::int64_t>(piece->from.size());
    at::Tensor& slot = slots[turn];
    if (!slot.defined()) slot = device_.host_bytes(static_cast<std::int64_t>(piece_bytes_));
    if (sent[turn]) sent[turn]->synchronize();
    store_.read(piece->from, static_cast<std::byte*>(slot.data_ptr()));
    at::from_blob(piece->to, {size}, at::TensorOptions(at::kByte).device(device_.place()))
        .copy_(slot.narrow(0, 0, size), /*non_blocking=*/true);
    if (!sent[turn]) sent[turn].emplace(device_.place().type());
    sent[turn]->record(stream);
  }
  stream.synchronize();
}

namespace {

constexpr std::int64_t kBlock = 128;  // of float8 scales, in all checkpoints; the last may be cut off

/// Scales (out / height, in / width) side by side with the elements (rows, columns) that they belong to; those for a
/// whole row, or for all, are left for broadcasting.
at::Tensor spread(const at::Tensor& scale, std::int64_t rows, std::int64_t columns, const std::string& name) {
  if (scale.numel() == 1) return scale.reshape({1, 1});
  const std::int64_t scale_rows = scale.size(0), scale_columns = scale.numel() / scale_rows;
  at::Tensor out = scale.reshape({scale_rows, scale_columns});
  const auto spread_over = [&](std::int64_t dim, std::int64_t size) {
    const std::int64_t count = out.size(dim);
    if (count == 1 || count == size) return true;
    if (count != (size + kBlock - 1) / kBlock) return false;
    out = out.repeat_interleave(kBlock, dim).narrow(dim, 0, size);
    return true;
  };
  if (spread_over(0, rows) && spread_over(1, columns)) return out;
  throw DataError("the scales " + shape_text({{scale_rows, scale_columns}}) + " do not fit the float8 weight " +
                      shape_text({{rows, columns}}),
                  name, "use a checkpoint with blocks of 128 x 128, or with one scale a row or a matrix");
}

/// Blocks of 32 four-bit floats, low nibble first, times 2^(scale - 127): (out, in / 32, 16) bytes -> (out, in).
at::Tensor unpack_mxfp4(const at::Tensor& blocks, const at::Tensor& scales, at::ScalarType dtype) {
  static std::array<float, 16> values{0, .5F, 1, 1.5F, 2, 3, 4, 6, -0.F, -.5F, -1, -1.5F, -2, -3, -4, -6};
  const at::Tensor table = at::from_blob(values.data(), {16}, at::kFloat).to(blocks.device());
  const at::Tensor low = blocks.bitwise_and(15), high = blocks.bitwise_right_shift(4);
  const at::Tensor codes = at::stack({low, high}, -1).to(at::kInt);
  // An exponent becomes a float by taking its place in one.
  const at::Tensor factors = scales.to(at::kInt).bitwise_left_shift(23).view(at::kFloat).unsqueeze(-1);
  const at::Tensor floats = at::index_select(table, 0, codes.flatten()).view({scales.size(0), scales.size(1), 32});
  return (floats * factors).to(dtype).view({scales.size(0), scales.size(1) * 32});
}

}  // namespace

std::string scales_of(const WeightStore& store, const std::string& name) {
  return store.contains(name + "_scale") ? name + "_scale" : name + "_scale_inv";
}

at::Tensor scales_of_rows(const at::Tensor& scale, const at::Tensor& rows, const TensorRef& matrix,
                          const std::string& name) {
  const std::int64_t count = scale.dim() == 0 ? 1 : scale.size(0), all = matrix.shape[0], columns = matrix.shape[1];
  const bool whole = scale.numel() == 1 || count == 1, blocks = count == (all + kBlock - 1) / kBlock && count != all;
  const at::Tensor own = whole ? scale : scale.index_select(0, blocks ? at::floor_divide(rows, kBlock) : rows);
  return spread(own, rows.numel(), columns, name).expand({rows.numel(), columns});
}

at::Tensor StoredWeight::unpack(at::ScalarType dtype) const {
  if (value.scalar_type() == at::kByte) return unpack_mxfp4(value, scale, dtype);
  const bool matrix = value.dim() >= 2 && value.size(0) > 1;
  if (!scale.defined()) return value.to(matrix ? dtype : at::kFloat);
  const std::int64_t rows = value.size(0), columns = value.numel() / rows;
  const at::Tensor floats = value.view({rows, columns}).to(at::kFloat);
  return (floats * spread(scale.to(at::kFloat), rows, columns, name)).to(dtype);
}

StoredWeight want_weight(Fetch& fetch, const WeightStore& store, const std::string& name) {
  StoredWeight weight{fetch.want(store.at(name)), {}, name};
  if (is_float8(store.at(name).dtype)) weight.scale = fetch.want(store.at(scales_of(store, name)));
  return weight;
}

StoredWeight want_slice(Fetch& fetch, const WeightStore& store, const std::string& name, int index) {
  StoredWeight weight{fetch.want(slice(store.at(name), index)), {}, name};
  if (!is_float8(store.at(name).dtype)) return weight;
  const TensorRef& scales = store.at(scales_of(store, name));
  if (scales.shape.empty() || scales.shape.front() != store.at(name).shape.front()) {
    throw DataError("the scales " + shape_text(scales.shape) + " do not fit the stack of float8 weights", name,
                    "use a checkpoint with scales for each expert");
  }
  weight.scale = fetch.want(slice(scales, index));
  return weight;
}

StoredWeight want_mxfp4(Fetch& fetch, const WeightStore& store, const std::string& name, int index) {
  return {fetch.want(slice(store.at(name + "_blocks"), index)), fetch.want(slice(store.at(name + "_scales"), index)),
          name};
}

}  // namespace oscar
