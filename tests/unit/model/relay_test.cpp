// SPDX-License-Identifier: MIT
// Processes in a ring, as threads, with links that behave like NCCL's at their worst: a transfer goes on until both
// ends have begun it, and a process cannot begin one while another of its own is on its way.
#include "model/relay.hpp"

#include <doctest/doctest.h>

#include <future>
#include <map>
#include <random>
#include <vector>

#include "base/wait.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

struct Number : Rows {
  explicit Number(int n) : value(n) {}
  int value;
};

/// All that the processes have in common.
struct Ring {
  struct Wire {
    int sent = 0, received = 0;  // begun
    std::vector<int> values;
  };

  std::mutex mutex;
  std::map<std::string, std::string> store;
  std::map<std::string, Wire> wires;
  std::map<int, int> on_their_way;  // by process
  int names = 0;

  void put(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex);
    store[key] = value;
  }
  std::string take(const std::string& key) {
    std::string value;
    wait([&] {
      const auto found = store.find(key);
      if (found == store.end()) return false;
      value = found->second;
      store.erase(found);
      return true;
    });
    return value;
  }
  /// Holds the mutex while it asks, and when it returns.
  void wait(const std::function<bool()>& done) {
    const bool came = wait_until(
        [&] {
          const std::lock_guard lock(mutex);
          return done();
        },
        20);
    if (!came) throw BackendUnavailable("all wait for each other", "", "");
  }
};

class RingLink : public HiddenLink {
 public:
  RingLink(Ring& ring, int process, std::string name, bool sends)
      : ring_(ring), process_(process), name_(std::move(name)), sends_(sends) {}

  bool is_ready() override {
    const std::lock_guard lock(ring_.mutex);
    const Ring::Wire& wire = ring_.wires[name_];
    if (passing_ && (sends_ ? wire.received : wire.sent) >= count_) {
      --ring_.on_their_way[process_];
      passing_ = false;
    }
    return !passing_;
  }
  std::function<bool()> computed() const override {
    return [] { return true; };
  }
  void send(const Rows& hidden) override {
    begin([&](Ring::Wire& wire) {
      wire.values.push_back(static_cast<const Number&>(hidden).value);
      ++wire.sent;
    });
  }
  void receive(std::size_t) override {
    begin([](Ring::Wire& wire) { ++wire.received; });
  }
  std::unique_ptr<Rows> received() override {
    const std::lock_guard lock(ring_.mutex);
    return std::make_unique<Number>(ring_.wires[name_].values[static_cast<std::size_t>(count_ - 1)]);
  }
  void abort() noexcept override {}

 private:
  void begin(const std::function<void(Ring::Wire&)>& change) {
    ring_.wait([&] {
      if (ring_.on_their_way[process_] > 0) return false;
      ++ring_.on_their_way[process_];
      change(ring_.wires[name_]);
      passing_ = true;
      ++count_;
      return true;
    });
  }

  Ring& ring_;
  int process_;
  std::string name_;
  bool sends_, passing_ = false;
  int count_ = 0;
};

/// Of a decoder, what a relay asks of one.
class RingDecoder : public Decoder {
 public:
  RingDecoder(Ring& ring, int process) : ring_(ring), process_(process) {}

  std::string link_place() const override { return "GPU " + std::to_string(process_); }
  std::string new_link_name() const override {
    const std::lock_guard lock(ring_.mutex);
    return "link " + std::to_string(ring_.names++);
  }
  std::unique_ptr<HiddenLink> open_link(const std::string& name, bool sends) const override {
    return std::make_unique<RingLink>(ring_, process_, name, sends);
  }
  Tensor new_hidden_copy(std::size_t) const override { return {DType::kF32, {1, 1}}; }
  std::unique_ptr<Rows> hidden_from(const TensorRef&, std::span<const std::int32_t>) const override {
    return std::make_unique<Number>(-1);
  }

  std::string description() const override { return "a ring"; }
  int concurrent_sequences() const override { return 1; }
  std::int64_t tokens_at_once() const override { return 1; }
  bool is_gpu() const override { return true; }
  std::shared_ptr<std::byte> host_memory(std::size_t) const override { return {}; }
  void make_room(std::int64_t) override {}
  void finish() const override {}
  std::unique_ptr<Rows> embed(std::span<const std::int32_t>, std::int64_t) const override { return {}; }
  Tensor copy_hidden(const Rows&) const override { return {}; }
  std::unique_ptr<LoadedWeights> load_layer(int) const override { return {}; }
  std::vector<std::unique_ptr<LoadedWeights>> load_experts(int, std::span<const int>) const override { return {}; }
  int experts_at_once(int) const override { return 1; }
  bool holds_experts_of(int) const override { return false; }
  std::unique_ptr<Rows> project(const LoadedWeights&, Rows&) const override { return {}; }
  void copy_qkv(Rows&, const QkvBuffers&) const override {}
  std::string finish_copy(Rows&) const override { return ""; }
  void add_exact_attention(const LoadedWeights&, const Rows&, Rows&) const override {}
  void add_attention(const LoadedWeights&, std::span<const float>, Rows&) const override {}
  void add_recurrent(const LoadedWeights&, Rows&) const override {}
  void add_mlp(const LoadedWeights&, Rows&) const override {}
  std::unique_ptr<Rows> route(const LoadedWeights&, std::span<const Rows* const>) const override { return {}; }
  std::vector<int> chosen_experts(const Rows&) const override { return {}; }
  void add_expert(const LoadedWeights&, int, const LoadedWeights&, Rows&) const override {}
  void add_experts_sum(const LoadedWeights&, const Rows&, std::span<Rows* const>) const override {}
  std::shared_ptr<const LoadedWeights> load_head() const override { return {}; }
  void logits(const LoadedWeights&, const Rows&, std::int64_t, std::span<float>) const override {}
  std::unique_ptr<Rows> behind(const LoadedWeights&, Experts, const Rows&) const override { return {}; }
  std::unique_ptr<Rows> likelihood_gradient(const LoadedWeights&, const Rows&, std::span<const float>) const override {
    return {};
  }
  void pull_back(const LoadedWeights&, Experts, const Rows&, Rows&, Windows, const HistoryBuffers&) const override {}

 private:
  Ring& ring_;
  int process_;
};

/// One process: what it receives, layer by layer, each one more than was sent.
std::vector<int> run_process(Ring& ring, int process, int processes, int layers, int sequences) {
  RingDecoder decoder(ring, process);
  const ModelShare share{.rank = process,
                         .ranks = processes,
                         .put = [&](const std::string& key, const std::string& value) { ring.put(key, value); },
                         .take = [&](const std::string& key) { return ring.take(key); },
                         .name = [](int rank) { return "rank " + std::to_string(rank); },
                         .open_seconds = 20};
  Relay relay(share, decoder);
  relay.wait_until_open();
  std::mt19937 random(static_cast<unsigned>(process));
  std::vector<int> seen;
  const std::vector<std::int32_t> token{0};
  for (int layer = process; layer < layers; layer += processes) {
    for (int s = 0; s < sequences; ++s) {
      const auto sequence = static_cast<std::size_t>(s);
      auto hidden = layer == 0 ? std::make_unique<Number>(1000 * s) : relay.receive(layer, sequence, token);
      const int value = static_cast<const Number&>(*hidden).value;
      seen.push_back(value);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      if (layer + 1 < layers) relay.send(layer + 1, sequence, std::make_unique<Number>(value + 1));
    }
  }
  relay.finish();
  return seen;
}

}  // namespace

TEST_CASE("hidden states go around rings of any size, in order, and no ring of transfers waits for itself") {
  constexpr int kLayers = 14, kSequences = 12;
  for (const int processes : {2, 3, 5}) {
    CAPTURE(processes);
    Ring ring;
    std::vector<std::future<std::vector<int>>> all;
    for (int process = 0; process < processes; ++process) {
      all.push_back(std::async(std::launch::async,
                               [&, process] { return run_process(ring, process, processes, kLayers, kSequences); }));
    }
    for (int process = 0; process < processes; ++process) {
      std::vector<int> expected;
      for (int layer = process; layer < kLayers; layer += processes) {
        for (int s = 0; s < kSequences; ++s) expected.push_back(1000 * s + layer);
      }
      CHECK(all[static_cast<std::size_t>(process)].get() == expected);
    }
    CHECK(ring.store.empty());
  }
}

}  // namespace oscar
