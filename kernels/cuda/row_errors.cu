// SPDX-License-Identifier: MIT
// row_errors(): energies of the exact rows x R, rounded to fp32, and of what rounding and codec add to them.
#include <algorithm>

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

/// Of kValuesPerBlock values a block. exact: dense, as many as `history` has.
__global__ void add_energies(const double* exact, RowsView history, Energies* energies) {
  const std::int64_t first = blockIdx.x * kValuesPerBlock;
  const std::int64_t end = min(first + kValuesPerBlock, history.count() * history.dim);
  double signal = 0;
  double noise = 0;
  for (std::int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    const double x = static_cast<float>(exact[i]);
    const double e = x - history.value(history.offset(i / history.dim) + i % history.dim);
    signal += x * x;
    noise += e * e;
  }
  signal = block_sum(signal);
  noise = block_sum(noise);
  if (threadIdx.x == 0) energies[blockIdx.x] = {signal, noise};
}

/// One side, tokens [begin, end). The rows of a step are few enough to rotate and decode at once.
Energies energies_of(const Context& context, const HeldRows& rows, const Rotation& rotation,
                     const std::optional<RowCodec>& codec, Precision precision, std::int64_t begin, std::int64_t end) {
  Energies sums{0, 0};
  const std::int64_t step = std::max<std::int64_t>(kValuesAtATime / (std::int64_t{rows.kv_heads()} * rows.dim()), 1);
  for (std::int64_t first = begin; first < end; first += step) {
    const Part part{0, rows.kv_heads(), first, std::min(step, end - first)};
    const DeviceBuffer<double> exact = rows.rotated(context, part, rotation, Precision::kExact);
    RowsView history = rows.stored(part);
    DeviceBuffer<float> decoded(context, codec ? rows.size(part) : 0);
    if (codec) {
      quantize_rows(context, history, {&*codec, 1}, precision, {.decoded = decoded.data()});
      history = dense_rows(decoded.data(), history.count(), history.dim);
    }
    const auto blocks = (rows.size(part) + kValuesPerBlock - 1) / kValuesPerBlock;
    DeviceBuffer<Energies> parts(context, blocks);
    add_energies<<<static_cast<unsigned>(blocks), kThreads, 0, context.stream()>>>(exact.data(), history, parts.data());
    OSCAR_CUDA_LAUNCHED("add_energies");
    for (const Energies& energies : parts.to_host(context)) {
      sums.signal += energies.signal;
      sums.noise += energies.noise;
    }
  }
  return sums;
}

}  // namespace

RowErrors row_errors(const Context& context, const HeldData& held, const HistoryCodecs& codecs, Windows windows) {
  const std::int64_t begin = windows.sink;
  const std::int64_t end = held.k.tokens() - windows.recent;
  const Energies key = energies_of(context, held.k, held.key_rotation, codecs.key, held.precision, begin, end);
  const Energies value = energies_of(context, held.v, held.value_rotation, codecs.value, held.precision, begin, end);
  return {key.signal, key.noise, value.signal, value.noise};
}

}  // namespace oscar::cuda
