// SPDX-License-Identifier: MIT
#include "model/torch/device.hpp"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <new>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

/// Why libtorch's CUDA part cannot be used; empty: it can. It lies beside the part that is loaded already.
std::string open_cuda_part() {
  // Registering host memory takes a fraction of what allocating it pinned does; segments that grow leave no gaps.
  ::setenv("PYTORCH_CUDA_ALLOC_CONF",
           "pinned_use_cuda_host_register:True,pinned_num_register_threads:8,expandable_segments:True", 0);
  Dl_info torch{};
  if (::dladdr(reinterpret_cast<const void*>(&at::globalContext), &torch) == 0) return "libtorch has no file";
  const std::filesystem::path beside = std::filesystem::canonical(torch.dli_fname).parent_path() / "libtorch_cuda.so";
  if (::dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) return ::dlerror();
  try {
    at::globalContext().lazyInitDevice(at::kCUDA);
    // cuDNN is left out, since it compiles attention kernels at run time: once for each shape and each thread.
    at::globalContext().setSDPUseCuDNN(false);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
  return "";
}

/// "cuda" or "cuda:N".
bool is_gpu_name(const std::string& name) {
  if (name == "cuda") return true;
  const std::string number = name.starts_with("cuda:") ? name.substr(5) : "";
  return !number.empty() && number.size() < 3 && number.find_first_not_of("0123456789") == std::string::npos;
}

c10::Device find_device(const std::string& name) {
  if (name == "cpu") return at::kCPU;
  if (!is_gpu_name(name)) {
    throw UsageError("unknown device \"" + name + "\"", "--device", "use auto, cpu, cuda or cuda:N");
  }
  static const std::string failure = open_cuda_part();
  if (!failure.empty()) {
    throw BackendUnavailable("libtorch cannot use the GPU: " + failure, "--device " + name,
                             "install libtorch with its CUDA part, or use --device cpu");
  }
  c10::Device place(name);
  const auto count = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  if (!place.has_index()) place.set_index(0);
  if (place.index() >= count) {
    throw BackendUnavailable((count == 1 ? "there is " : "there are ") + plural(count, "GPU"), "--device " + name,
                             "count them from cuda:0");
  }
  return place;
}

at::ScalarType find_dtype(const std::string& name, bool gpu) {
  if (name == "auto") return gpu ? at::kBFloat16 : at::kFloat;
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  throw UsageError("models do not compute in \"" + name + "\"", "--model-dtype", "use auto, float32 or bfloat16");
}

}  // namespace

Device::Device(const std::string& device, const std::string& dtype, std::function<void(const std::string&)> notice)
    : place_(find_device(device)), dtype_(find_dtype(dtype, is_gpu())), notice_(std::move(notice)) {
  if (is_gpu()) layers_ = new_stream(true), experts_ = new_stream(true), copying_ = new_stream(true);
}

std::string Device::description() const { return place_.str() + (dtype_ == at::kFloat ? ", float32" : ", bfloat16"); }

at::Tensor Device::host_bytes(std::int64_t count) const {
  return at::empty({count}, at::TensorOptions(at::kByte).pinned_memory(is_gpu()));
}

std::size_t Device::free_bytes() const {
  return is_gpu() ? c10::getDeviceAllocator(place_.type())->getMemoryInfo(place_.index()).first : 0;
}

bool Device::multiplies_halves() const {
  std::call_once(chosen_, [&] {
    if (!is_gpu() || dtype_ != at::kFloat) return;
    halves_ = has_much_room();
    if (!halves_) notice_("GPU memory is short: products of float32 are not split for tensor cores, and take longer");
  });
  return halves_;
}

void Device::release_unused() const {
  if (is_gpu()) c10::getDeviceAllocator(place_.type())->emptyCache();
}

c10::Stream Device::new_stream(bool lasting) const {
  return c10::impl::VirtualGuardImpl(place_.type()).getStreamFromGlobalPool(place_, /*isHighPriority=*/lasting);
}

c10::Stream Device::current_stream() const { return c10::impl::VirtualGuardImpl(place_.type()).getStream(place_); }

SideStream::SideStream(const Device& device, const std::optional<c10::Stream>& stream, Starts starts) {
  if (!stream) return;
  if (starts == Starts::kAfterCurrent) {
    c10::Event before(device.place().type());
    before.record(device.current_stream());
    before.block(*stream);
  }
  guard_.emplace(*stream);
}

std::optional<c10::Event> SideStream::mark() const {
  if (!guard_) return std::nullopt;
  c10::Event done(guard_->current_device().type());
  done.record(guard_->current_stream());
  return done;
}

void SideStream::finish() const {
  if (guard_) guard_->current_stream().synchronize();
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  return std::string_view(error.what()).find("can't allocate memory") != std::string_view::npos;
}

}  // namespace oscar
