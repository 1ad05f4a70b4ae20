// SPDX-License-Identifier: MIT
// row_errors(): energies of the native rows, and of what rounding and codec add to the exact transformed rows, in fp32;
// mapped back where the transform does not keep lengths.
#include <algorithm>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/held_sequence.hpp"
#include "kernels/cuda/row_codec.hpp"

namespace oscar::cuda {
namespace {

constexpr std::int64_t kValuesPerBlock = std::int64_t{1} << 14;
/// Values that are rotated and decoded at a time: 32 MiB of doubles.
constexpr std::int64_t kValuesAtATime = std::int64_t{1} << 22;

struct Energies {
  double signal, noise;
};

/// errors: exact rows, dense, become exact - history.
__global__ void subtract_history(double* errors, RowsView history) {
  const std::int64_t i = task_index();
  if (i >= history.count() * history.dim) return;
  errors[i] = static_cast<float>(errors[i]) - history.value(history.offset(i / history.dim) + i % history.dim);
}

/// Of kValuesPerBlock values of head blockIdx.y a block: native values and errors, in any order. energies:
/// (heads, gridDim.x).
__global__ void add_energies(const double* errors, RowsView native, Energies* energies) {
  const std::int64_t values = native.rows_per_head * native.dim;
  const std::int64_t begin = blockIdx.y * values;
  const std::int64_t first = begin + blockIdx.x * kValuesPerBlock;
  const std::int64_t end = min(first + kValuesPerBlock, begin + values);
  double signal = 0;
  double noise = 0;
  for (std::int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    const double x = native.value(native.offset(i / native.dim) + i % native.dim);
    signal += x * x;
    noise += errors[i] * errors[i];
  }
  signal = block_sum(signal);
  noise = block_sum(noise);
  if (threadIdx.x == 0) energies[blockIdx.y * gridDim.x + blockIdx.x] = {signal, noise};
}

/// errors read^T for the matrix of each head.
DeviceBuffer<double> mapped_back(const Context& context, DeviceBuffer<double> errors, const HeldRows& rows,
                                 const Rotation& read) {
  const std::int64_t dim = rows.dim();
  const std::int64_t batch = read.count() == 1 ? 1 : rows.kv_heads();
  DeviceBuffer<double> native(context, errors.size());
  gemm(context,
       {.m = static_cast<std::int64_t>(errors.size()) / dim / batch,
        .n = dim,
        .k = dim,
        .b = Transpose::kYes,
        .batch = batch},
       errors.data(), read.matrix(0, Precision::kExact), native.data());
  return native;
}

/// One side, tokens [begin, end): of each head. The rows of a step are few enough to rotate and decode at once.
/// read: null if the transform keeps lengths.
std::vector<Energies> energies_of(const Context& context, const HeldRows& rows, const Rotation& write,
                                  const Rotation* read, const std::optional<HistoryCodec>& codec, Precision precision,
                                  std::int64_t begin, std::int64_t end) {
  std::vector<Energies> sums(static_cast<std::size_t>(rows.kv_heads()));
  const std::int64_t step = std::max<std::int64_t>(kValuesAtATime / (std::int64_t{rows.kv_heads()} * rows.dim()), 1);
  for (std::int64_t first = begin; first < end; first += step) {
    const Part part{0, rows.kv_heads(), first, std::min(step, end - first)};
    DeviceBuffer<double> errors = rows.rotated(context, part, write, Precision::kExact);
    RowsView history = rows.stored(part);
    DeviceBuffer<float> decoded(context, codec ? rows.size(part) : 0);
    if (codec && rows.has_history()) {
      history = rows.history(part);
    } else if (codec) {
      quantize_rows(context, history, {&*codec, 1}, precision, {.decoded = decoded.data()});
      history = dense_rows(decoded.data(), history.count(), history.dim);
    }
    subtract_history<<<blocks_for(errors.size()), kThreads, 0, context.stream()>>>(errors.data(), history);
    OSCAR_CUDA_LAUNCHED("subtract_history");
    if (read != nullptr) errors = mapped_back(context, std::move(errors), rows, *read);
    const std::size_t blocks = (rows.size(part) / sums.size() + kValuesPerBlock - 1) / kValuesPerBlock;
    DeviceBuffer<Energies> parts(context, blocks * sums.size());
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(sums.size()));
    add_energies<<<grid, kThreads, 0, context.stream()>>>(errors.data(), rows.native(part), parts.data());
    OSCAR_CUDA_LAUNCHED("add_energies");
    const std::vector<Energies> found = parts.to_host(context);
    for (std::size_t i = 0; i < found.size(); ++i) {
      sums[i / blocks].signal += found[i].signal;
      sums[i / blocks].noise += found[i].noise;
    }
  }
  return sums;
}

}  // namespace

std::vector<RowErrors> row_errors(const Context& context, const HeldData& held, const HistoryCodecs& codecs,
                                  Windows windows) {
  const std::int64_t begin = windows.sink;
  const std::int64_t end = held.k.tokens() - windows.recent;
  const auto of_side = [&](const HeldRows& rows, const Rotation& write, const Rotation& read, bool keeps_lengths,
                           const std::optional<HistoryCodec>& codec) {
    return energies_of(context, rows, write, keeps_lengths ? nullptr : &read, codec, held.precision, begin, end);
  };
  const auto key = of_side(held.k, held.key_write, held.query_read, held.key_keeps_lengths, codecs.key);
  const auto value = of_side(held.v, held.value_write, held.value_read, held.value_keeps_lengths, codecs.value);
  std::vector<RowErrors> errors;
  for (std::size_t h = 0; h < key.size(); ++h) {
    errors.push_back({key[h].signal, key[h].noise, value[h].signal, value[h].noise});
  }
  return errors;
}

}  // namespace oscar::cuda
