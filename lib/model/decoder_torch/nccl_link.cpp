// SPDX-License-Identifier: MIT
// Each link is a communicator of two. The library is the one that libtorch's CUDA part has loaded.
#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <type_traits>

#include "base/errors.hpp"
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
  decltype(&ncclGetErrorString) error_string;
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
    find("ncclGetErrorString", found.error_string);
    return found;
  }();
  return library;
}

void check(ncclResult_t result) {
  if (result != ncclSuccess) fail(nccl().error_string(result));
}

class Link : public HiddenLink {
 public:
  Link(const Device& device, std::int64_t hidden_size, const std::string& name, bool sends)
      : device_(device), hidden_size_(hidden_size), stream_(device.new_stream(/*lasting=*/true)) {
    ncclUniqueId id{};
    if (name.size() != sizeof id) fail("the ranks do not agree");
    std::memcpy(&id, name.data(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = kBlocks;
    const CallGuard guard(device_);
    check(nccl().init(&communicator_, 2, id, sends ? 0 : 1, &config));
  }
  /// Does not wait: the other end may be gone.
  ~Link() override { (void)nccl().abort(communicator_); }

  void send(const Rows& hidden) override {
    const CallGuard guard(device_);
    const at::Tensor x = static_cast<const HiddenRows&>(hidden).x.to(device_.place()).contiguous();
    const SideStream side(device_, stream_);
    check(nccl().send(x.data_ptr(), bytes_of(x), ncclChar, 1, communicator_, handle()));
    x.record_stream(stream_);  // its memory stays until that is done
  }

  std::unique_ptr<Rows> receive(std::size_t tokens) override {
    const CallGuard guard(device_);
    auto hidden = std::make_unique<HiddenRows>();
    hidden->x = at::empty({static_cast<std::int64_t>(tokens), hidden_size_},
                          at::TensorOptions(device_.dtype()).device(device_.place()));
    std::optional<c10::Event> done;
    {
      const SideStream side(device_, stream_);
      check(nccl().receive(hidden->x.data_ptr(), bytes_of(hidden->x), ncclChar, 0, communicator_, handle()));
      done = side.mark();
    }
    done->block(device_.current_stream());
    return hidden;
  }

 private:
  static std::size_t bytes_of(const at::Tensor& x) { return static_cast<std::size_t>(x.nbytes()); }
  [[nodiscard]] cudaStream_t handle() const { return static_cast<cudaStream_t>(stream_.native_handle()); }

  const Device& device_;
  std::int64_t hidden_size_;
  c10::Stream stream_;
  ncclComm_t communicator_ = nullptr;
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
