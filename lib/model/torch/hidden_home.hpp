// SPDX-License-Identifier: MIT
// Where hidden states live while no layer computes with them: on the device, or on the host if the device has too
// little memory.
#pragma once

#include <functional>
#include <string>

#include "model/torch/device.hpp"
#include "model/torch/rows.hpp"

namespace oscar {

class HiddenHome {
 public:
  HiddenHome(const Device& device, bool on_host, std::function<void(const std::string&)> notice)
      : device_(device), on_host_(on_host), notice_(std::move(notice)) {}

  /// Decides for hidden states of so many bytes, which will live at a time.
  void make_room(double bytes) {
    if (!device_.is_gpu() || on_host_) return;
    on_host_ = bytes > kShare * static_cast<double>(device_.free_bytes());
    if (on_host_) notice_("hidden states live in the host's memory: the GPU has too little");
  }

  [[nodiscard]] bool on_host() const { return on_host_; }

  /// x as it rests between layers; never the memory of `x` there, which keep() writes to.
  [[nodiscard]] at::Tensor resting(const at::Tensor& x) const { return on_host_ ? x.cpu().clone() : x; }
  /// Hidden states on the device.
  [[nodiscard]] at::Tensor here(const Rows& hidden) const { return state_of(hidden).x.to(device_.place()); }
  /// Replaces hidden states.
  void keep(Rows& hidden, const at::Tensor& x) const {
    at::Tensor& own = state_of(hidden).x;
    if (!on_host_) {
      own = x;
    } else if (own.defined()) {
      own.copy_(x);
    } else {
      own = x.cpu();
    }
  }
  /// Takes hidden states to the host if the device would soon be full of others like them.
  void put_aside(HiddenRows& hidden) const {
    if (device_.is_gpu() && device_.free_bytes() < kSpareCopies * hidden.x.nbytes()) hidden.x = hidden.x.cpu();
  }

 private:
  static constexpr double kShare = 0.5;            // of a GPU's free memory
  static constexpr std::size_t kSpareCopies = 32;  // for which a GPU keeps memory free

  const Device& device_;
  bool on_host_;
  std::function<void(const std::string&)> notice_;
};

}  // namespace oscar
