// SPDX-License-Identifier: MIT
// Where a decoder computes, and in which type. libtorch's CUDA part is opened when a GPU is asked for: nothing here is
// linked with it, so that one plug-in serves machines with and without. On a GPU the current stream computes, and
// others load weights and copy results to the host.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace oscar {

class Device {
 public:
  /// Opens a device by its name in DecoderOptions. Throws BackendUnavailable, UsageError.
  Device(const std::string& device, const std::string& dtype, std::function<void(const std::string&)> notice);

  [[nodiscard]] c10::Device place() const { return place_; }
  [[nodiscard]] bool is_gpu() const { return !place_.is_cpu(); }
  /// The type of weights and activations.
  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  /// "cuda:0, bfloat16"
  [[nodiscard]] std::string description() const;
  /// Pinned if this is a GPU.
  [[nodiscard]] at::Tensor host_bytes(std::int64_t count) const;
  /// Bytes of the device's memory that are free, and those that libtorch has at hand; 0 = unknown.
  [[nodiscard]] std::size_t free_bytes() const;
  /// Whether a GPU can keep what else would be loaded or made again.
  [[nodiscard]] bool has_much_room() const { return is_gpu() && free_bytes() > std::size_t{24} << 30; }
  /// Whether products of float32 are those of bfloat16 halves, which need room beside the weights. That is found out
  /// once, so that all runs compute alike, and told if there is none.
  [[nodiscard]] bool multiplies_halves() const;
  /// Gives memory that is at hand but not used back to the device.
  void release_unused() const;

  /// lasting: of a pool that passing needs, like readers, do not use up.
  [[nodiscard]] c10::Stream new_stream(bool lasting = false) const;
  [[nodiscard]] c10::Stream current_stream() const;
  /// Return the streams that load layers, and experts: what one load frees, another may not overwrite too early. There
  /// are none on the CPU.
  [[nodiscard]] const std::optional<c10::Stream>& layer_stream() const { return layers_; }
  [[nodiscard]] const std::optional<c10::Stream>& expert_stream() const { return experts_; }
  [[nodiscard]] const std::optional<c10::Stream>& copying_stream() const { return copying_; }

 private:
  c10::Device place_;
  at::ScalarType dtype_;
  std::optional<c10::Stream> layers_, experts_, copying_;
  std::function<void(const std::string&)> notice_;
  mutable std::once_flag chosen_;
  mutable bool halves_ = false;
};

/// What is done meanwhile goes to another stream of a GPU. Nothing without one.
class SideStream {
 public:
  enum class Starts { kNow, kAfterCurrent };
  /// kAfterCurrent: when what the current stream was given is done.
  SideStream(const Device& device, const std::optional<c10::Stream>& stream, Starts starts = Starts::kAfterCurrent);
  /// When what it was given is done.
  [[nodiscard]] std::optional<c10::Event> mark() const;
  void finish() const;

 private:
  std::optional<c10::StreamGuard> guard_;
};

/// What every call needs: no gradients, no helper threads, the device.
class CallGuard {
 public:
  explicit CallGuard(const Device& device) : device_(device.place()) {
    thread_local const bool once = (at::set_num_threads(1), true);
    (void)once;
  }

 private:
  at::NoGradGuard no_grad_;  // not InferenceMode: what is loaded under it could take no gradient back
  c10::OptionalDeviceGuard device_;
};

/// Whether libtorch ran out of the device's or the host's memory.
[[nodiscard]] bool is_out_of_memory(const std::exception& error);

}  // namespace oscar
