// SPDX-License-Identifier: MIT
#include "commands/on_ranks.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "console.hpp"

namespace oscar {
namespace {

/// Ranks of one machine share its GPUs and its cores; a launcher that binds each to some cores has dealt those already.
void take_share_of_machine(const Place& place, Context& context) {
  CommonOptions& common = context.common;
  const int gpus = common.device == "auto" || common.device == "cuda" ? cuda_device_count() : 0;
  if (gpus > 0) common.device = "cuda:" + std::to_string(place.local_rank % gpus);
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const bool bound = cores < ::sysconf(_SC_NPROCESSORS_ONLN);
  if (common.threads == 0 && !bound) set_num_threads(std::max(1, cores / place.local_size));
  if (place.rank > 0) context.status = std::make_unique<Console>(Console::Options{.quiet = true, .progress = false});
}

std::string text_of(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known == nullptr || known->where().empty()) return error.what();
  return known->what() + (" (" + known->where() + ")");
}

[[noreturn]] void give_up(const RankFailed& error) {
  print_error(error);
  ::_exit(1);
}

}  // namespace

void run_on_ranks(const Place& place, const FitCommand& command, Context& context,
                  const std::function<void(Ranks&)>& task) {
  take_share_of_machine(place, context);
  Ranks ranks(place, {.silent_seconds = static_cast<double>(command.rank_timeout), .give_up = give_up});
  context.status->notice(fmt::format("{} ranks, {} threads in this one", ranks.size(), num_threads()));
  try {
    task(ranks);
    ranks.leave();
  } catch (const std::exception& error) {
    ranks.fail(text_of(error));
    throw;
  }
}

void require_same(const Json& what, Ranks& ranks) {
  if (ranks.rank() == 0) ranks.put("work", what.dump());
  if (parse_json(ranks.get("work"), "the work of rank 0") == parse_json(what.dump(), "")) return;
  throw DataError("rank " + std::to_string(ranks.rank()) + " has other data or options than rank 0", "oscar fit",
                  "start all ranks with the same command, where all see the same files");
}

std::vector<int> share_of(const std::vector<int>& layers, int rank, int size) {
  std::vector<int> own;
  for (auto i = static_cast<std::size_t>(rank); i < layers.size(); i += static_cast<std::size_t>(size)) {
    own.push_back(layers[i]);
  }
  return own;
}

}  // namespace oscar
