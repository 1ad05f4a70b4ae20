// SPDX-License-Identifier: MIT
#include "verify/coded_damage.hpp"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/errors.hpp"
#include "verify/compare_states.hpp"
#include "verify/measure.hpp"
#include "verify/method_attention.hpp"

namespace oscar::verify {
namespace {

/// A new folder beside others, whose name begins as it is told; it goes with everything in it.
class StatesFolder {
 public:
  explicit StatesFolder(const std::filesystem::path& beginning) {
    std::string name = beginning.string() + "-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      throw IoError(std::string("cannot make a folder for hidden states: ") + std::strerror(errno), name,
                    "free space, or write where you may");
    }
    path_ = name;
  }
  ~StatesFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  StatesFolder(const StatesFolder&) = delete;
  StatesFolder& operator=(const StatesFolder&) = delete;

  [[nodiscard]] std::filesystem::path before(int layer) const {
    return path_ / (std::to_string(layer) + ".safetensors");
  }

 private:
  std::filesystem::path path_;
};

class DamageMeter {
 public:
  DamageMeter(ModelRunner& runner, std::span<const TokenSequence> texts, const std::filesystem::path& states,
              Backend& backend)
      : runner_(runner), texts_(texts), states_(states), backend_(backend), rules_(rules_of(runner)) {}

  /// Runs the model through the method's caches, exactly where it has none, and keeps what each layer of the set reads.
  [[nodiscard]] std::unique_ptr<FinalStates> run_and_keep(const KvMethod& method, const CodedSet& set) {
    const std::unique_ptr<ModelPass> pass = begin();
    auto wanted = set.layers.begin();
    while (pass->layer() < num_layers()) {
      while (wanted != set.layers.end() && wanted->layer_id < pass->layer()) ++wanted;
      const bool keeps = wanted != set.layers.end() && wanted->layer_id == pass->layer() && pass->layer() > 0;
      if (keeps) pass->save(states_.before(pass->layer()));
      step(*pass, method);
    }
    return pass->final_states();
  }

  /// Runs the method from layer `first` on, from what was kept of it.
  [[nodiscard]] std::unique_ptr<FinalStates> run_from(int first, const KvMethod& method) {
    const std::unique_ptr<ModelPass> pass = begin();
    if (first > 0) pass->restore(states_.before(first));
    while (pass->layer() < num_layers()) step(*pass, method);
    return pass->final_states();
  }

  /// The mean KL of each run beside exact ones.
  [[nodiscard]] std::vector<double> mean_kl(const FinalStates& exact, std::span<const FinalStates* const> runs) const {
    std::vector<double> means;
    for (const std::vector<TextFigures>& texts : compare_states(runner_, texts_, exact, runs, Positions::kQuarter)) {
      double kld = 0, positions = 0;
      for (const TextFigures& text : texts) {
        for (const PositionFigures& position : text) kld += position.kld;
        positions += static_cast<double>(text.size());
      }
      means.push_back(kld / positions);
    }
    return means;
  }

 private:
  void step(ModelPass& pass, const KvMethod& method) {
    throw_if_interrupted();
    const int cache = runner_.config().cache_of(pass.layer());
    if (!method.layers.contains(cache)) return pass.step({}, false);
    const AttentionHook attention = [&](int, std::size_t, const QkvView& qkv, std::span<float> out) {
      attend(method, cache, qkv, {0, qkv.q.num_tokens}, rules_.at(cache), Precision::kServing, backend_, out);
      return true;
    };
    pass.step(attention, false);
  }
  [[nodiscard]] int num_layers() const { return runner_.config().num_layers; }
  [[nodiscard]] std::unique_ptr<ModelPass> begin() { return runner_.begin(texts_, {.layers = num_layers()}, quiet_); }

  ModelRunner& runner_;
  std::span<const TokenSequence> texts_;
  StatesFolder states_;
  Backend& backend_;
  std::map<int, ScoreRule> rules_;
  Status quiet_;
};

/// The methods in which the keys, and the values, of a layer are what `beside` does not say of all others.
std::array<KvMethod, 2> methods_of(const KvMethod& all, int layer, CodedBeside beside) {
  std::array<KvMethod, 2> methods{all, all};
  if (beside == CodedBeside::kCoded) {
    methods[0].layers.at(layer).key.quantized = methods[1].layers.at(layer).value.quantized = false;
    return methods;
  }
  for (KvMethod& method : methods) method.layers = {{layer, all.layers.at(layer)}};
  methods[0].layers.at(layer).value.quantized = methods[1].layers.at(layer).key.quantized = false;
  return methods;
}

}  // namespace

std::vector<CodedDamage> measure_damage(ModelRunner& runner, std::span<const TokenSequence> texts, const CodedSet& set,
                                        CodedBeside beside, const std::filesystem::path& states, Backend& backend,
                                        Status& status) {
  const KvMethod all = method_of_coded_set(set, set.windows), none{"exact", MethodKind::kThis, set.windows, {}};
  const bool coded = beside == CodedBeside::kCoded;
  DamageMeter meter(runner, texts, states, backend);
  const auto total = static_cast<std::int64_t>(all.layers.size());
  const char* const what = coded ? "what errors cost beside others, layer" : "what errors cost alone, layer";
  status.progress(what, 0, total);
  const std::unique_ptr<FinalStates> exact = meter.run_and_keep(none, set);
  double whole = 0;
  if (coded) {
    const std::unique_ptr<FinalStates> run = meter.run_and_keep(all, set);
    whole = meter.mean_kl(*exact, std::array<const FinalStates*, 1>{run.get()}).front();
  }
  std::vector<CodedDamage> damage;
  for (const CodedLayer& layer : set.layers) {
    const std::array<KvMethod, 2> methods = methods_of(all, layer.layer_id, beside);
    const std::unique_ptr<FinalStates> key = meter.run_from(layer.layer_id, methods[0]),
                                       value = meter.run_from(layer.layer_id, methods[1]);
    const std::vector<double> found = meter.mean_kl(*exact, std::array<const FinalStates*, 2>{key.get(), value.get()});
    damage.push_back(coded ? CodedDamage{whole - found[0], whole - found[1]} : CodedDamage{found[0], found[1]});
    status.progress(what, std::ssize(damage), total);
  }
  return damage;
}

std::vector<CodedDamage> measure_attention_damage(QkvSource& source, const CodedSet& set, Backend& backend,
                                                  Status& status) {
  constexpr std::int64_t kQueries = 512;  // of each layer
  const Subject nothing;
  const std::vector<KvMethod> methods{method_of_coded_set(set, set.windows)};
  const Measurements found = measure_source(
      source, {&nothing, &methods, {}, kQueries, Precision::kServing, false, set.windows}, backend, status);
  std::vector<CodedDamage> damage;
  for (const AttentionSums& layer : found.methods.front().layers) {
    const AttentionMetrics metrics = layer.metrics();
    damage.push_back({metrics.output_rel_error_k_only, metrics.output_rel_error_v_only});
  }
  return damage;
}

}  // namespace oscar::verify
