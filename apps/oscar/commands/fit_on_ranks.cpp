// SPDX-License-Identifier: MIT
// One fit by several processes: each fits a share of the layers, rank 0 makes the set. A layer does not depend on who
// fits it, so that the set has the same bits as that of one process.
#include <chrono>
#include <optional>

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

/// Fits the layers of this rank. A model's sequences are dealt too: its rows go to the rank that fits the layer.
void fit_own(const FitCommand& command, FitInput& input, const std::vector<int>& missing, const PartialSet& partial,
             const FitHooks& hooks, Backend& backend, Ranks& ranks, Status& status) {
  if (missing.empty()) return;
  const std::vector<int> own = share_of(missing, ranks.rank(), ranks.size());
  const auto shared = input.share(missing, {ranks.rank(), ranks.size(), partial_folder(command) / "rows"});
  QkvSource& source = shared ? *shared : input.source();
  fit_layers(source, own, command.fit, backend, status, hooks);
  if (shared) shared->finish();
  for (const int id : own) {
    if (ranks.rank() > 0) ranks.put(key_of(id), read_text(partial.file_of(id)));
  }
}

/// The folder, begun by rank 0 and then known to all. Rows of a model go through it, so that they must share it.
PartialSet open_partial(const FitCommand& command, const Json& fit, Ranks& ranks) {
  const std::filesystem::path folder = partial_folder(command);
  auto [partial, shared] = open_together(folder, fit, command.resume, ranks);
  if (ranks.rank() == 0) std::filesystem::remove_all(folder / "rows");
  if (!shared && !command.input.model.empty()) {
    throw DataError("the ranks do not see one folder", folder.string(),
                    "give --out on a file system that all share, or fit a dump, or in parts (--save-stats)");
  }
  return PartialSet(std::move(partial));
}

}  // namespace

void fit_on_ranks(Ranks& ranks, FitCommand& command, Context& context) {
  const std::unique_ptr<Backend> backend = make_backend(context.common.device, *context.status);
  FitInput input(command, context);
  QkvSource& source = input.source();
  const Json record = fit_record(input, command);
  require_same(record, ranks);
  const PartialSet partial = open_partial(command, record, ranks);
  if (const auto few = too_few_tokens(source, command.fit)) context.status->notice(*few);
  Times times{.startup = seconds_since(context.started)};
  const auto start = std::chrono::steady_clock::now();
  const FitHooks hooks{.output_projection = input.output_projection(), .partial = &partial};
  const std::vector<int> missing = missing_layers(source.layer_ids(), partial, ranks);
  fit_own(command, input, missing, partial, hooks, *backend, ranks, *context.status);
  if (ranks.rank() > 0) return;
  collect(missing, partial, ranks);
  FitResult result = fit(source, command.fit, *backend, *context.status, hooks);
  result.seconds = seconds_since(start);
  const auto fitted = std::chrono::steady_clock::now();
  write_rotation_set(command.out, result.set, parse_rotation_formats(command.formats), command.force);
  partial.remove();
  times.writing = seconds_since(fitted);
  report(result, times, command, *backend, context);
}

}  // namespace oscar
