// SPDX-License-Identifier: MIT
// Where rows come from.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/errors.hpp"
#include "base/places.hpp"
#include "base/sha256.hpp"
#include "commands/fit_command.hpp"
#include "dump/folder_source.hpp"
#include "model/tokenizer/tokens.hpp"
#include "model/weights/checkpoint.hpp"

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

}  // namespace

FitInput::FitInput(const FitCommand& command, const Context& context)
    : model_(command.input.model), dump_(command.dump), outlives_(!command.save_stats.empty()) {
  Status& status = *context.status;
  const std::vector<int> layers = parse_layers(command.input.layers);
  const TokenLimits& limits = command.input.limits;
  if (!dump_.empty()) {
    source_ = open_dump(dump_, {limits.max_tokens, limits.max_sequences, layers}, status);
    uncodable_ = why_not_coded(*source_);
    return;
  }
  runner_ = open_input_model(command.input, context);
  sequences_ = read_sequences(command.input, runner_->config(), status);
  uncodable_ = why_not_coded(runner_->config(), layers);
  LiveOptions live_options{.layers = layers};
  if (plan_parts(command.fit, uncodable_.empty()).coded) {
    const int most = runner_->config().max_position_embeddings, asked = command.fit.context;
    if (asked > most) {
      throw UsageError(fmt::format("the model reads {} tokens at most", most), fmt::format("--context {}", asked),
                       "give that, or less");
    }
    context_ = asked > 0 ? asked : most;
    live_options.first_positions = spread_over(context_, sequences_);
  }
  auto live = open_live(*runner_, sequences_, live_options, status);
  live_ = live.get();
  source_ = std::move(live);
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
