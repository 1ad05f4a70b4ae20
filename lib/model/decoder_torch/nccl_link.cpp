// SPDX-License-Identifier: MIT
// Each link is a communicator of two. The library is the one that libtorch's CUDA part has loaded.
#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
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
      : device_(device), hidden_size_(hidden_size), stream_(device.new_stream()) {
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
    sent_.emplace_back(x, side.mark());
    while (sent_.front().done->query()) {
      sent_.pop_front();
      if (sent_.empty()) break;
    }
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

  void finish() override {
    for (const Sent& each : sent_) each.done->synchronize();
    sent_.clear();
  }

 private:
  struct Sent {
    at::Tensor x;  // whose memory is needed until it is done
    std::optional<c10::Event> done;
  };

  static std::size_t bytes_of(const at::Tensor& x) { return static_cast<std::size_t>(x.nbytes()); }
  [[nodiscard]] cudaStream_t handle() const { return static_cast<cudaStream_t>(stream_.native_handle()); }

  const Device& device_;
  std::int64_t hidden_size_;
  c10::Stream stream_;
  ncclComm_t communicator_ = nullptr;
  std::deque<Sent> sent_;
};

}  // namespace

/// "machine cuda:0 of 2,3": each process may see other GPUs.
std::string link_place(const Device& device) {
  if (!device.is_gpu()) return "";
  char host[256] = "";
  (void)::gethostname(host, sizeof host - 1);
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return host + (" " + device.place().str()) + " of " + (visible == nullptr ? "all" : visible);
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
