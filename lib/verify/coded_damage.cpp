// SPDX-License-Identifier: MIT
#include "verify/coded_damage.hpp"

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

  /// Runs the model exactly, and keeps what each layer of the set reads.
  void run_exactly(const CodedSet& set) {
    const std::unique_ptr<ModelPass> pass = begin();
    auto wanted = set.layers.begin();
    while (pass->layer() < num_layers()) {
      while (wanted != set.layers.end() && wanted->layer_id < pass->layer()) ++wanted;
      const bool keeps = wanted != set.layers.end() && wanted->layer_id == pass->layer() && pass->layer() > 0;
      if (keeps) pass->save(states_.before(pass->layer()));
      pass->step({}, false);
    }
    exact_ = pass->final_states();
  }

  /// The damage of each method, which has one layer.
  [[nodiscard]] std::vector<double> damage_of(std::span<const KvMethod> methods) {
    std::vector<std::unique_ptr<FinalStates>> owned;
    std::vector<const FinalStates*> runs;
    for (const KvMethod& method : methods) {
      owned.push_back(run(method));
      runs.push_back(owned.back().get());
    }
    std::vector<double> damage;
    for (const std::vector<TextFigures>& texts : compare_states(runner_, texts_, *exact_, runs, Positions::kQuarter)) {
      double kld = 0, positions = 0;
      for (const TextFigures& text : texts) {
        for (const PositionFigures& position : text) kld += position.kld;
        positions += static_cast<double>(text.size());
      }
      damage.push_back(kld / positions);
    }
    return damage;
  }

 private:
  [[nodiscard]] std::unique_ptr<FinalStates> run(const KvMethod& method) {
    const int coded = method.layers.begin()->first;
    const std::unique_ptr<ModelPass> pass = begin();
    if (coded > 0) pass->restore(states_.before(coded));
    const AttentionHook attention = [&](int, std::size_t, const QkvView& qkv, std::span<float> out) {
      attend(method, coded, qkv, {0, qkv.q.num_tokens}, rules_.at(coded), Precision::kServing, backend_, out);
      return true;
    };
    while (pass->layer() < num_layers()) {
      throw_if_interrupted();
      const bool reads = runner_.config().cache_of(pass->layer()) == coded;
      pass->step(reads ? attention : AttentionHook(), false);
    }
    return pass->final_states();
  }
  [[nodiscard]] int num_layers() const { return runner_.config().num_layers; }
  [[nodiscard]] std::unique_ptr<ModelPass> begin() { return runner_.begin(texts_, {.layers = num_layers()}, quiet_); }

  ModelRunner& runner_;
  std::span<const TokenSequence> texts_;
  StatesFolder states_;
  Backend& backend_;
  std::map<int, ScoreRule> rules_;
  Status quiet_;
  std::unique_ptr<FinalStates> exact_;
};

}  // namespace

std::vector<CodedDamage> measure_damage(ModelRunner& runner, std::span<const TokenSequence> texts, const CodedSet& set,
                                        const std::filesystem::path& states, Backend& backend, Status& status) {
  const KvMethod all = method_of_coded_set(set, set.windows);
  DamageMeter meter(runner, texts, states, backend);
  const auto total = static_cast<std::int64_t>(all.layers.size());
  status.progress("what errors cost, layer", 0, total);
  meter.run_exactly(set);
  std::vector<CodedDamage> damage;
  for (const auto& [id, layer] : all.layers) {
    std::vector<KvMethod> alone(2, all);
    for (KvMethod& method : alone) method.layers = {{id, layer}};
    alone[0].layers.at(id).value.quantized = alone[1].layers.at(id).key.quantized = false;
    const std::vector<double> found = meter.damage_of(alone);
    damage.push_back({found[0], found[1]});
    status.progress("what errors cost, layer", std::ssize(damage), total);
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
