// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/errors.hpp"
#include "base/places.hpp"
#include "base/sha256.hpp"
#include "commands/fit_command.hpp"
#include "dump/folder_source.hpp"
#include "fit/search.hpp"
#include "model/tokenizer/tokens.hpp"
#include "model/weights/checkpoint.hpp"
#include "model_judge.hpp"

namespace oscar {
namespace {

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
    : sequences_(std::move(sequences)) {
  Status& status = *context.status;
  const std::vector<int> layers = parse_layers(command.input.layers);
  const TokenLimits& limits = command.input.limits;
  if (command.dump.empty() == command.input.model.empty()) {
    throw UsageError(command.dump.empty() ? "nothing to fit on" : "--dump and --model exclude each other", "oscar fit",
                     "give --dump DIR, or --model DIR with --text or --tokens, or --stats FILE");
  }
  if (!command.dump.empty() && !(command.input.texts.empty() && command.input.tokens.empty())) {
    throw UsageError("--text and --tokens are for a model, and a dump has its own", "--dump", "leave them out");
  }
  if (!command.dump.empty()) {
    source_ = open_dump(command.dump, {limits.max_tokens, limits.max_sequences, layers}, status);
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
  return judges_ ? make_model_judge(*runner_, sequences_, options, backend) : ModelJudge();
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

Json fit_record(FitInput& input, const FitCommand& command) {
  const RotationSet unfitted = command.fit.recipe == "auto" ? unfitted_search(input.source(), command.fit)
                                                            : unfitted_set(input.source(), command.fit);
  return with_fingerprints(describe_fit(unfitted, command.fit), input, command);
}

Json with_fingerprints(Json record, FitInput& input, const FitCommand& command) {
  if (!command.input.model.empty()) record["weights"] = fingerprint_of_weights(command.input.model);
  if (command.dump.empty()) return record;
  Json& layers = record[PartialFolder::kDataOfLayers] = Json::object();
  for (const auto& [id, print] : fingerprint_layers(command.dump, input.source().layer_ids())) {
    layers[std::to_string(id)] = print;
  }
  return record;
}

}  // namespace oscar
