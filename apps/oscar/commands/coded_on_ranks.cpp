// SPDX-License-Identifier: MIT
// oscar fit --recipe coded by several processes: each takes a share of the layers, of a model's text they share all of
// them; rank 0 asks the model what errors cost, and spends the bits. A layer does not depend on who takes it, so that
// the set, and the statistics, have the bytes of one process.
#include <chrono>
#include <filesystem>
#include <future>

#include "base/atomic_file.hpp"
#include "base/clock.hpp"
#include "base/files.hpp"
#include "commands/coded_taker.hpp"
#include "commands/on_ranks.hpp"

namespace oscar {
namespace {

std::string key_of_coded(int layer_id) { return "coded/" + std::to_string(layer_id); }

/// What errors cost, as rank 0 was told, or had kept.
std::map<int, ErrorCost> costs_of_all(CodedTaker& taker, const PartialCodedData& partial, Ranks& ranks) {
  if (ranks.rank() == 0) {
    std::map<int, ErrorCost> costs = partial.costs([&] { return taker.costs(); });
    ranks.put("costs", costs.empty() ? "" : read_text(partial.file_of_costs()));
    return costs;
  }
  const std::string kept = ranks.get("costs");
  if (kept.empty()) return {};
  if (!std::filesystem::exists(partial.file_of_costs())) write_file(partial.file_of_costs(), kept);
  return partial.costs({});
}

/// Layers of the others, which rank 0's folder may lack.
void collect_coded(const std::vector<int>& missing, const PartialCodedData& partial, Ranks& ranks) {
  for (int rank = 1; rank < ranks.size(); ++rank) {
    for (const int id : share_of(missing, rank, ranks.size())) {
      write_file(partial.file_of(id), ranks.take(key_of_coded(id)));
    }
  }
}

void take_coded_together(Ranks& ranks, const FitCommand& command, FitInput& input, Backend& backend, Context& context) {
  CodedTaker taker(command, input, backend, *context.status);
  const Json record = taker.record();
  require_same_work(record, input, backend, ranks);
  SharedFolder together = open_together(coded_partial_folder(command), record, command.resume, ranks, *context.status);
  const PartialCodedData partial(std::move(together.folder));
  const auto started = std::chrono::steady_clock::now();
  const std::map<int, ErrorCost> costs = costs_of_all(taker, partial, ranks);
  const std::vector<int> missing = missing_layers(input.source().layer_ids(), partial, ranks);
  const std::vector<int> own = share_of(missing, ranks.rank(), ranks.size());
  const bool shares_text = input.runner() != nullptr;
  if (shares_text) input.deal(missing);
  taker.take(shares_text ? missing : own, costs, partial);
  if (ranks.rank() > 0) {
    for (const int id : own) ranks.put(key_of_coded(id), read_text(partial.file_of(id)));
    if (!together.shared) partial.remove();
    return;
  }
  collect_coded(missing, partial, ranks);
  finish_coded(command, taker.take_all(costs, &partial), started, backend, context);
  partial.remove();
}

}  // namespace

void fit_coded_on_ranks(Ranks& ranks, const FitCommand& command, Context& context) {
  const std::shared_future<std::shared_ptr<Backend>> starting =
      std::async(std::launch::async, [&context]() -> std::shared_ptr<Backend> { return start_backend(context); });
  FitInput input(command, context, share_of_text(ranks, [starting] { return starting.get()->work_shape(); }));
  tell_failure(ranks, [&] {
    input.wait_until_ready();
    take_coded_together(ranks, command, input, *starting.get(), context);
  });
}

}  // namespace oscar
