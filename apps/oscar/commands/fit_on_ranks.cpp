// SPDX-License-Identifier: MIT
// One fit by several processes: each fits a share of the layers, rank 0 makes the set. Of a dump each reads its layers
// alone; a model's text they share, so that all of them take part in reading every layer. A layer does not depend on
// who reads and fits it, so that the set has the same bits as that of one process.
#include <algorithm>
#include <chrono>
#include <future>

#include "base/atomic_file.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "commands/fit_command.hpp"
#include "commands/on_ranks.hpp"
#include "fit/enough_tokens.hpp"
#include "rotation/formats.hpp"

namespace oscar {
namespace {

std::string key_of(int layer_id) { return "layer/" + std::to_string(layer_id); }

/// Layers of the others, which rank 0's folder may lack: it need not be one that they share.
void collect(const std::vector<int>& missing, const PartialSet& partial, Ranks& ranks) {
  for (int rank = 1; rank < ranks.size(); ++rank) {
    for (const int id : share_of(missing, rank, ranks.size())) {
      write_file(partial.file_of(id), ranks.take(key_of(id)));
    }
  }
}

/// Fits the layers of this rank.
void fit_own(const FitCommand& command, FitInput& input, const std::vector<int>& missing, const PartialSet& partial,
             const FitHooks& hooks, Backend& backend, Ranks& ranks, Status& status) {
  const std::vector<int> own = share_of(missing, ranks.rank(), ranks.size());
  const bool shares_text = input.runner() != nullptr;
  if (shares_text) input.deal(missing);
  fit_layers(input.source(), shares_text ? missing : own, command.fit, backend, status, hooks);
  for (const int id : own) {
    if (ranks.rank() > 0) ranks.put(key_of(id), read_text(partial.file_of(id)));
  }
}

void fit_input(Ranks& ranks, FitCommand& command, FitInput& input, Backend& backend, Context& context) {
  QkvSource& source = input.source();
  const Json record = fit_record(input, command);
  require_same_work(record, input, backend, ranks);
  SharedFolder together = open_together(partial_folder(command), record, command.resume, ranks, *context.status);
  const PartialSet partial(std::move(together.folder));
  if (const auto few = too_few_tokens(source, command.fit)) context.status->notice(*few);
  input.wait_until_ready();
  Times times{.startup = seconds_since(context.started)};
  const auto start = std::chrono::steady_clock::now();
  const FitHooks hooks{.output_projection = input.output_projection(), .partial = &partial};
  const std::vector<int> missing = missing_layers(source.layer_ids(), partial, ranks);
  fit_own(command, input, missing, partial, hooks, backend, ranks, *context.status);
  if (ranks.rank() > 0) {
    if (!together.shared) partial.remove();  // rank 0 has it all
    return;
  }
  collect(missing, partial, ranks);
  FitResult result = fit(source, command.fit, backend, *context.status, hooks);
  result.seconds = seconds_since(start);
  const auto fitted = std::chrono::steady_clock::now();
  write_rotation_set(command.out, result.set, parse_rotation_formats(command.formats), command.force);
  partial.remove();
  times.writing = seconds_since(fitted);
  report(result, times, command, backend, context);
}

}  // namespace

void fit_on_ranks(Ranks& ranks, FitCommand& command, Context& context) {
  // Meanwhile the input is opened.
  const std::shared_future<std::shared_ptr<Backend>> starting =
      std::async(std::launch::async, [&context]() -> std::shared_ptr<Backend> { return start_backend(context); });
  FitInput input(command, context, share_of_text(ranks, [starting] { return starting.get()->work_shape(); }));
  tell_failure(ranks, [&] { fit_input(ranks, command, input, *starting.get(), context); });
}

}  // namespace oscar
