// SPDX-License-Identifier: MIT
#include "observe_state.hpp"

#include "base/errors.hpp"

namespace oscar::operators {
namespace {

/// All states of the process by their numbers, which are given once. Never destroyed: tensors can outlive the end of
/// main(), and GPUs are gone by then.
struct States {
  std::mutex mutex;
  std::map<std::int64_t, std::shared_ptr<State>> known;
  std::int64_t last = 0;
};

States& states() {
  static auto* const all = new States;
  return *all;
}

/// What torch calls when the tensor goes.
void forget(void* number) {
  std::shared_ptr<State> state;  // goes after the lock does
  {
    const std::lock_guard lock(states().mutex);
    const auto found = states().known.find(*static_cast<std::int64_t*>(number));
    if (found != states().known.end()) state = std::move(found->second), states().known.erase(found);
  }
  delete static_cast<std::int64_t*>(number);
}

}  // namespace

Tensor tensor_of(std::unique_ptr<State> state) {
  auto number = std::make_unique<std::int64_t>();
  {
    const std::lock_guard lock(states().mutex);
    *number = ++states().last;
    states().known.emplace(*number, std::move(state));
  }
  return torch::stable::from_blob(number.release(), {1}, {1}, Device(DeviceType::CPU), ScalarType::Long, &forget);
}

std::shared_ptr<State> state_of(const Tensor& tensor) {
  const bool is_number = tensor.is_cpu() && tensor.scalar_type() == ScalarType::Long && tensor.numel() == 1;
  if (!is_number)
    fail("state is ", tensor.scalar_type(), " ", shape_of(tensor), " on ", text_of(tensor.device()),
         ", not what torch.ops.oscar.new_state returned");
  const std::int64_t number = *tensor.const_data_ptr<std::int64_t>();
  const std::lock_guard lock(states().mutex);
  const auto found = states().known.find(number);
  if (found == states().known.end())
    fail("there is no state ", number, "; keep what torch.ops.oscar.new_state returned");
  return found->second;
}

Layer::Layer(const LayerShape& shape_, const Device& device_, std::unique_ptr<GpuLayer> gpu_)
    : shape(shape_), device(device_), gpu(std::move(gpu_)) {
  if (!gpu) host.emplace(shape);
}

void Layer::write(LayerSums sums) {
  if (gpu) return gpu->write(sums);
  host = std::move(sums);
}

void Layer::clear() {
  if (gpu) return gpu->clear();
  host.emplace(shape);
}

void merge(State& state, const State& other) {
  if (state.shard.first != other.shard.first || state.shard.total != other.shard.total) {
    throw DataError("states of different KV heads are not of different data", "merge",
                    "save each, and give both files to oscar fit --stats");
  }
  std::mt19937_64 random(static_cast<std::uint64_t>(state.seed) ^ 0x9e3779b97f4a7c15U);
  for (const auto& [id, layer] : other.layers) {
    const auto found = state.layers.find(id);
    if (found == state.layers.end()) {
      Layer copy(layer.shape, layer.device, layer.gpu ? layer.gpu->another() : nullptr);
      copy.write(layer.read());
      state.layers.emplace(id, std::move(copy));
    } else {
      LayerSums sums = found->second.read();
      merge(sums, layer.read(), id, random);
      found->second.write(std::move(sums));
    }
  }
}

}  // namespace oscar::operators
