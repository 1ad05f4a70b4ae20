// SPDX-License-Identifier: MIT
#include "base/errors.hpp"
#include "commands/fit_command.hpp"
#include "dump/folder_source.hpp"
#include "dump/live_source.hpp"
#include "model/output_projection.hpp"
#include "model_judge.hpp"

namespace oscar {

FitInput::FitInput(const FitCommand& command, const Context& context) : status_(*context.status) {
  Status& status = status_;
  const std::vector<int> layers = parse_layers(command.input.layers);
  const TokenLimits& limits = command.input.limits;
  if (command.dump.empty() == command.input.model.empty()) {
    throw UsageError(command.dump.empty() ? "nothing to fit on" : "--dump and --model exclude each other", "oscar fit",
                     "give --dump DIR, or --model DIR with --text or --tokens, or --stats FILE");
  }
  if (!command.dump.empty()) {
    source_ = open_dump(command.dump, {limits.max_tokens, limits.max_sequences, layers}, status);
    return;
  }
  model_ = command.input.model;
  runner_ = open_input_model(command.input, context);
  sequences_ = read_sequences(command.input, runner_->config(), status);
  source_ = open_live(*runner_, sequences_, {.layers = layers}, status);
  // A model judges whole sets only.
  judges_ = layers.empty() && command.fit.recipe == "auto" && runner_->config().why_irreplaceable().empty();
}

ModelJudge FitInput::judge(const FitOptions& options, Backend& backend) {
  return judges_ ? make_model_judge(*runner_, sequences_, options, backend) : ModelJudge();
}

std::unique_ptr<SharedLiveSource> FitInput::share(const std::vector<int>& layers, const LiveShare& share) const {
  if (!runner_) return nullptr;
  return open_shared_live(*runner_, sequences_, {.layers = layers}, share, status_);
}

OutputProjection FitInput::output_projection() const {
  if (!runner_) return {};
  return
      [model = model_, config = runner_->config()](int layer) { return read_output_projection(model, config, layer); };
}

}  // namespace oscar
