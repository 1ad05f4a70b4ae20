// SPDX-License-Identifier: MIT
// Where rows come from, and what the model that makes them says of caches.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/errors.hpp"
#include "base/places.hpp"
#include "base/sha256.hpp"
#include "commands/fit_command.hpp"
#include "dump/folder_source.hpp"
#include "measure/set_method.hpp"
#include "model/tokenizer/tokens.hpp"
#include "model/weights/checkpoint.hpp"
#include "verify/methods.hpp"
#include "measure/predictions/model_data.hpp"
#include "measure/predictions/model_metrics.hpp"

namespace oscar {
namespace {

/// Tokens of held-out text that candidates are judged on. Every candidate reads the first part. Those whose KL is at
/// most kOpen times the lowest may still be the best; if there are several, they also read the rest.
constexpr std::int64_t kFirstTokens = 2048, kAllTokens = 8192;
constexpr double kOpen = 1.5;
/// Probes decide among candidates of about the same KL (choose() in lib/fit): only those within this factor of the
/// lowest are asked for them, if there are several.
constexpr double kProbed = 1.2;
constexpr std::int64_t kProbeTokens = 768;

/// Indices of those whose KL is at most `factor` times the lowest.
std::vector<std::size_t> near_lowest(std::span<const ModelScore> scores, double factor) {
  double lowest = std::numeric_limits<double>::infinity();
  for (const ModelScore& score : scores) lowest = std::min(lowest, score.kld);
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scores[i].kld <= lowest * factor) found.push_back(i);
  }
  return found;
}

/// Asks a model about caches, in the order of their methods.
class Judge {
 public:
  /// sequences: those that the fit calibrates on, in the same order. runner and backend must outlive this.
  Judge(ModelRunner& runner, Backend& backend, const std::vector<TokenSequence>& sequences, const FitOptions& options)
      : runner_(runner), backend_(backend) {
    const HeldOutSplit split(std::ssize(sequences));
    std::vector<TokenSequence> held_out, others;
    for (std::size_t i = 0; i < sequences.size(); ++i) (split.held_out(i) ? held_out : others).push_back(sequences[i]);
    add_texts(held_out);
    const std::int64_t distance = options.windows.recent + std::int64_t{64};
    Probes probes =
        make_probes(held_out, others,
                            {.length = std::max(kProbeTokens, 2 * (options.windows.sink + distance)),
                             .first = options.windows.sink,
                             .distance = distance,
                             .seed = options.clip_fit.seed});
    probes_.needles = std::move(probes.sequences);
    probes_.answer_lengths = std::move(probes.answer_lengths);
  }

  /// Returns what they do to predictions of text, without probes.
  [[nodiscard]] std::vector<ModelScore> read_texts(std::span<const KvMethod> methods) const {
    std::vector<std::size_t> all(methods.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    std::vector<ModelScore> scores(methods.size());
    const std::vector<ModelMetrics> first = measure(first_, methods, all);
    for (const std::size_t i : all) scores[i].kld = first[i].kld_mean;
    const std::vector<std::size_t> open = near_lowest(scores, kOpen);
    if (rest_.texts.empty() || open.size() < 2) return scores;
    const std::vector<ModelMetrics> rest = measure(rest_, methods, open);
    // What the whole text changes for those who read it, it would have changed for the others as well.
    double whole = 0, part = 0;
    for (std::size_t i = 0; i < open.size(); ++i) {
      const ModelMetrics &a = first[open[i]], &b = rest[i];
      const auto m = static_cast<double>(a.positions), n = static_cast<double>(b.positions);
      scores[open[i]].kld = (m * a.kld_mean + n * b.kld_mean) / (m + n);
      whole += scores[open[i]].kld, part += a.kld_mean;
    }
    for (const std::size_t i : all) {
      if (std::ranges::find(open, i) == open.end() && part > 0) scores[i].kld *= whole / part;
    }
    return scores;
  }

  /// Adds what they do to probes.
  void ask_probes(std::span<const KvMethod> methods, std::vector<ModelScore>& scores) const {
    for (ModelScore& score : scores) {
      const bool none = probes_.needles.empty();
      score.probe = none ? 0 : std::numeric_limits<double>::quiet_NaN();
      score.probe_error = none ? std::sqrt(0.125) : score.probe;
    }
    const std::vector<std::size_t> probed = near_lowest(scores, kProbed);
    if (probes_.needles.empty() || probed.size() < 2) return;
    double asked = 0;
    for (const int length : probes_.answer_lengths) asked += length - 1;
    const std::vector<ModelMetrics> found = measure(probes_, methods, probed);
    for (std::size_t i = 0; i < probed.size(); ++i) {
      // As if tokens were independent, and with one more found and one more missed, or a perfect score had no error.
      const double share = (found[i].answer_tokens * asked + 1) / (asked + 2);
      scores[probed[i]].probe = found[i].answer_tokens;
      scores[probed[i]].probe_error = std::sqrt(share * (1 - share) / (asked + 2));
    }
  }

 private:
  /// Cuts texts where a part is full: a candidate reads each from its beginning.
  void add_texts(std::span<const TokenSequence> held_out) {
    std::int64_t tokens = 0;
    for (const TokenSequence& text : held_out) {
      if (tokens >= kAllTokens) return;
      const bool first = tokens < kFirstTokens;
      const std::int64_t count = std::min((first ? kFirstTokens : kAllTokens) - tokens, std::ssize(text));
      if (count < 2) continue;
      (first ? first_ : rest_).texts.emplace_back(text.begin(), text.begin() + count);
      tokens += count;
    }
  }

  [[nodiscard]] std::vector<ModelMetrics> measure(const ModelData& data, std::span<const KvMethod> methods,
                                                  std::span<const std::size_t> asked) const {
    Status quiet;
    std::vector<KvMethod> caches;
    for (const std::size_t i : asked) caches.push_back(methods[i]);
    return measure_model(runner_, data, caches, Precision::kServing, backend_, quiet);
  }

  ModelRunner& runner_;
  Backend& backend_;
  ModelData first_, rest_, probes_;  // two parts of the texts; needles
};

/// A hash of the names, the sizes and 64 pieces of each file of weights, by which other weights under the same
/// configuration show. At a server, versions of files stand for pieces.
std::string fingerprint_of_weights(const std::filesystem::path& model) {
  constexpr std::uint64_t kPieces = 64, kPieceBytes = 4096;
  const std::unique_ptr<const Checkpoint> checkpoint = open_checkpoint(model);
  Sha256 hash;
  for (const auto& [name, file] : checkpoint->files()) {
    const std::span<const std::byte> bytes = file->bytes();
    const std::string text = name + " " + std::to_string(bytes.size()) + " " + file->version();
    hash.update(std::as_bytes(std::span(text)));
    for (std::uint64_t i = 0; !is_remote(model) && i < kPieces; ++i) {
      const std::uint64_t begin = bytes.size() / kPieces * i;
      hash.update(bytes.subspan(begin, std::min(kPieceBytes, bytes.size() - begin)));
    }
  }
  return hash.hex();
}

/// The longest text that will be served.
int context_of(const FitCommand& command, const ModelConfig& config) {
  const int most = config.max_position_embeddings;
  if (command.context <= most) return command.context > 0 ? command.context : most;
  throw UsageError(fmt::format("the model reads {} tokens at most", most), fmt::format("--context {}", command.context),
                   "give that, or less");
}

}  // namespace

FitInput::FitInput(const FitCommand& command, const Context& context, std::vector<TokenSequence> sequences)
    : model_(command.input.model), dump_(command.dump), sequences_(std::move(sequences)) {
  Status& status = *context.status;
  const std::vector<int> layers = parse_layers(command.input.layers);
  const TokenLimits& limits = command.input.limits;
  if (dump_.empty() == model_.empty()) {
    throw UsageError(dump_.empty() ? "nothing to fit on" : "--dump and --model exclude each other", "oscar fit",
                     "give --dump DIR, or --model DIR with --text or --tokens, or --stats FILE");
  }
  if (!dump_.empty() && !(command.input.texts.empty() && command.input.tokens.empty())) {
    throw UsageError("--text and --tokens are for a model, and a dump has its own", "--dump", "leave them out");
  }
  if (!dump_.empty()) {
    source_ = open_dump(dump_, {limits.max_tokens, limits.max_sequences, layers}, status);
    return;
  }
  runner_ = open_input_model(command.input, context);
  if (sequences_.empty()) sequences_ = read_sequences(command.input, runner_->config(), status);
  LiveOptions live_options{.layers = layers};
  if (command.fit.recipe == "coded") {
    context_ = context_of(command, runner_->config());
    live_options.first_positions = spread_over(context_, sequences_);
  }
  auto live = open_live(*runner_, sequences_, live_options, status);
  live_ = live.get();
  source_ = std::move(live);
  // A model judges whole sets only.
  judges_ = layers.empty() && command.fit.recipe == "auto" && runner_->config().why_irreplaceable().empty();
}

ModelJudge FitInput::judge(const FitOptions& options, Backend& backend) {
  if (!judges_) return {};
  return [judge = Judge(*runner_, backend, sequences_, options),
          windows = options.windows](std::span<const RotationPart> sets) {
    std::vector<KvMethod> methods;
    for (const RotationPart& set : sets) methods.push_back(method_of(set, windows));
    std::vector<ModelScore> scores = judge.read_texts(methods);
    judge.ask_probes(methods, scores);
    return scores;
  };
}

std::vector<double> FitInput::judge_by_kl(const FitOptions& options, Backend& backend,
                                          std::span<const KvMethod> methods) {
  std::vector<double> klds;
  for (const ModelScore& score : Judge(*runner_, backend, sequences_, options).read_texts(methods)) {
    klds.push_back(score.kld);
  }
  return klds;
}

std::string FitInput::why_not_judged() const {
  return runner_ == nullptr ? "a dump tells nothing of predictions" : runner_->config().why_irreplaceable();
}

void FitInput::wait_until_ready() {
  if (live_ != nullptr) live_->wait_until_ready();
}

void FitInput::keep_states(const PartialFolder& partial) {
  if (live_ != nullptr) live_->keep_states(partial.path(), [&partial](int layer) { return partial.has(layer); });
}

Json FitInput::with_fingerprints(Json record) const {
  if (!model_.empty()) record["weights"] = fingerprint_of_weights(model_);
  if (dump_.empty()) return record;
  Json& layers = record[PartialFolder::kDataOfLayers] = Json::object();
  for (const auto& [id, print] : fingerprint_layers(dump_, source_->layer_ids())) layers[std::to_string(id)] = print;
  return record;
}

}  // namespace oscar
