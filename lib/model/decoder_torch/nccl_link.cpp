// SPDX-License-Identifier: MIT
// Each link is a communicator of two, whose calls return before they are done: NCCL goes on with them in threads of its
// own, and is asked how far it is. The library is the one that libtorch's CUDA part has loaded.
#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "model/decoder_torch/link.hpp"
#include "model/decoder_torch/rows.hpp"

namespace oscar {
namespace {

constexpr int kBlocks = 8;  // of a GPU that a transfer takes from what computes

struct Nccl {
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
};

[[noreturn]] void fail(const std::string& what) {
  throw BackendUnavailable("NCCL cannot join the GPUs of two ranks: " + what, "",
                           "see what NCCL_DEBUG=INFO tells, or start one process with one GPU");
}

const Nccl& nccl() {
  static const Nccl library = [] {
    void* const handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) fail(::dlerror());
    const auto find = [&](const char* name, auto& function) {
      void* const symbol = ::dlsym(handle, name);
      if (symbol == nullptr) fail(::dlerror());
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    };
    Nccl found{};
    find("ncclGetUniqueId", found.get_unique_id);
    find("ncclCommInitRankConfig", found.init);
    find("ncclCommAbort", found.abort);
    find("ncclSend", found.send);
    find("ncclRecv", found.receive);
    find("ncclCommGetAsyncError", found.async_error);
    find("ncclGetErrorString", found.error_string);
    find("ncclGetLastError", found.last_error);
    return found;
  }();
  return library;
}

void check(ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const std::string detail = nccl().last_error(nullptr);
  fail(nccl().error_string(result) + (detail.empty() ? "" : " (" + detail + ")"));
}

class Link : public HiddenLink {
 public:
  Link(const Device& device, std::int64_t hidden_size, const std::string& name, bool sends)
      : device_(device), hidden_size_(hidden_size), sends_(sends), stream_(device.new_stream(/*lasting=*/true)) {
    ncclUniqueId id{};
    if (name.size() != sizeof id) fail("the ranks do not agree");
    std::memcpy(&id, name.data(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = kBlocks;
    const CallGuard guard(device_);
    const ncclResult_t result = nccl().init(&communicator_, 2, id, sends ? 0 : 1, &config);
    if (result != ncclSuccess && result != ncclInProgress) abort();
    check(result);
  }
  ~Link() override { abort(); }

  bool is_ready() override {
    const CallGuard guard(device_);
    const std::lock_guard lock(mutex_);
    if (!is_idle()) return false;
    if (!passed_) passed_ = mark(stream_);
    return passed_->query();
  }

  std::function<bool()> computed() const override {
    const CallGuard guard(device_);
    return [event = std::make_shared<c10::Event>(mark(device_.current_stream()))] { return event->query(); };
  }

  void send(const Rows& hidden) override {
    const CallGuard guard(device_);
    const c10::StreamGuard on(stream_);
    const std::lock_guard lock(mutex_);
    pass(static_cast<const HiddenRows&>(hidden).x.to(device_.place()).contiguous());
  }

  void receive(std::size_t tokens) override {
    const CallGuard guard(device_);
    const c10::StreamGuard on(stream_);  // it waits for no memory that others use
    const std::lock_guard lock(mutex_);
    try {
      pass(at::empty({static_cast<std::int64_t>(tokens), hidden_size_},
                     at::TensorOptions(device_.dtype()).device(device_.place())));
    } catch (const std::exception& error) {
      if (is_out_of_memory(error)) fail("the GPU has no memory for hidden states of " + plural(tokens, "token"));
      throw;
    }
  }

  std::unique_ptr<Rows> received() override {
    const CallGuard guard(device_);
    const std::lock_guard lock(mutex_);
    auto hidden = std::make_unique<HiddenRows>();
    hidden->x = std::exchange(passing_, at::Tensor());
    hidden->x.record_stream(device_.current_stream());
    return hidden;
  }

  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    if (communicator_ != nullptr) (void)nccl().abort(std::exchange(communicator_, nullptr));
  }

 private:
  /// Whether the last call is done, and what it began given to the GPU.
  [[nodiscard]] bool is_idle() const {
    if (communicator_ == nullptr) fail("the link was cut");
    ncclResult_t state = ncclSuccess;
    check(nccl().async_error(communicator_, &state));
    check(state);  // of the last call, or of what came of an earlier one
    return state == ncclSuccess;
  }

  void pass(const at::Tensor& x) {
    if (communicator_ == nullptr) fail("the link was cut");
    passing_ = x;
    passed_.reset();
    const auto bytes = static_cast<std::size_t>(x.nbytes());
    const auto stream = static_cast<cudaStream_t>(stream_.native_handle());
    check(sends_ ? nccl().send(x.data_ptr(), bytes, ncclChar, 1, communicator_, stream)
                 : nccl().receive(x.data_ptr(), bytes, ncclChar, 0, communicator_, stream));
  }

  [[nodiscard]] c10::Event mark(const c10::Stream& stream) const {
    c10::Event done(device_.place().type());
    done.record(stream);
    return done;
  }

  const Device& device_;
  std::int64_t hidden_size_;
  bool sends_;
  c10::Stream stream_;
  std::mutex mutex_;
  ncclComm_t communicator_ = nullptr;
  at::Tensor passing_;                // the last that was sent, or is being received
  std::optional<c10::Event> passed_;  // of that; nothing: not yet given to the GPU
};

/// Of a GPU, by the runtime that libtorch has loaded: processes may each see but one, and call it the first. Else by
/// what this process calls it.
std::string bus_id(int ordinal) {
  char id[32] = "";
  void* const runtime =
      ::dlopen(("libcudart.so." + std::to_string(CUDART_VERSION / 1000)).c_str(), RTLD_LAZY | RTLD_NOLOAD);
  using Ask = cudaError_t (*)(char*, int, int);
  const auto ask = runtime == nullptr ? nullptr : reinterpret_cast<Ask>(::dlsym(runtime, "cudaDeviceGetPCIBusId"));
  if (ask != nullptr && ask(id, sizeof id, ordinal) == cudaSuccess) return id;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return std::to_string(ordinal) + " of " + (visible == nullptr ? "all" : visible);
}

}  // namespace

/// "machine 0000:1b:00.0"; nothing without the library.
std::string link_place(const Device& device) {
  if (!device.is_gpu()) return "";
  try {
    (void)nccl();
  } catch (const BackendUnavailable&) {
    return "";
  }
  char host[256] = "";
  (void)::gethostname(host, sizeof host - 1);
  return host + (" " + bus_id(device.place().index()));
}

std::string new_link_name() {
  ncclUniqueId id{};
  check(nccl().get_unique_id(&id));
  return {id.internal, sizeof id.internal};
}

std::unique_ptr<HiddenLink> open_link(const Device& device, std::int64_t hidden_size, const std::string& name,
                                      bool sends) {
  return std::make_unique<Link>(device, hidden_size, name, sends);
}

}  // namespace oscar
