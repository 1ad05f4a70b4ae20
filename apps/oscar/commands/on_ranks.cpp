// SPDX-License-Identifier: MIT
#include "commands/on_ranks.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/atomic_file.hpp"
#include "base/cores.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "console.hpp"
#include "moments/blocks.hpp"

namespace oscar {
namespace {

/// Ranks of one machine share its GPUs, and those cores that a launcher has not dealt among them.
void take_share_of_machine(const Place& place, const Ranks& ranks, CommonOptions& common) {
  const int gpus = common.device == "auto" || common.device == "cuda" ? cuda_device_count() : 0;
  if (gpus > 0) common.device = "cuda:" + std::to_string(place.local_rank % gpus);
  if (common.threads == 0) set_num_threads(std::max(1, usable_cores().count / ranks.sharers_of_cores()));
}

/// Throws DataError if this rank has other members than rank 0. what: of this rank.
void require_same(const std::string& key, const Json& what, Ranks& ranks) {
  if (ranks.rank() == 0) ranks.put(key, what.dump());
  const Json first = parse_json(ranks.get(key), "what rank 0 does"), own = parse_json(what.dump(), "");
  if (first == own) return;
  throw DataError("rank " + std::to_string(ranks.rank()) +
                      " has other data or options than rank 0: " + PartialFolder::differences(first, own),
                  "oscar fit",
                  "start all ranks with the same command, where all see the same files and have GPUs or none");
}

/// Before ranks wait for each other in ways that depend on it.
void require_same_task(const FitCommand& command, Ranks& ranks) {
  const auto input = !command.input.model.empty() ? "model" : !command.dump.empty() ? "dump" : "statistics";
  require_same("task", {{"input", input}, {"output", command.save_stats.empty() ? "set" : "statistics"}}, ranks);
}

[[noreturn]] void give_up(const RankFailed& error) {
  print_error(error);
  ::_exit(1);
}

std::string text_of(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known == nullptr || known->where().empty()) return error.what();
  return known->what() + (" (" + known->where() + ")");
}

/// With all that its user would be told, should this process have to be ended before it can say so.
RankFailed as_rank_failed(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  return known == nullptr ? RankFailed(error.what(), "", "")
                          : RankFailed(known->what(), known->where(), known->remedy());
}

}  // namespace

void tell_failure(Ranks& ranks, const std::function<void()>& task) {
  try {
    task();
  } catch (const std::exception& error) {
    ranks.fail(text_of(error));
    if (!interrupt_requested()) interrupt(as_rank_failed(error));
    throw;
  }
}

void run_on_ranks(const Place& place, const FitCommand& command, Context& context,
                  const std::function<void(Ranks&)>& task) {
  if (place.rank > 0) context.status = std::make_unique<Console>(Console::Options{.quiet = true});
  Ranks ranks(place, {.join_seconds = static_cast<double>(command.join_timeout),
                      .silent_seconds = static_cast<double>(command.rank_timeout),
                      .give_up = give_up});
  tell_failure(ranks, [&] {
    take_share_of_machine(place, ranks, context.common);
    context.status->notice(plural(ranks.size(), "rank") + ", " + plural(num_threads(), "thread") + " in this one");
    require_same_task(command, ranks);
    task(ranks);
    ranks.leave();
  });
}

void require_same_work(Json record, FitInput& input, const Backend& backend, Ranks& ranks) {
  if (input.runner() != nullptr) {
    const std::string runs = input.runner()->description();  // "cuda:1, bfloat16"
    record["model_dtype"] = runs.substr(runs.rfind(' ') + 1);
  }
  const std::string description = backend.description();
  record["device"] = {description.substr(0, description.find_first_of(":,")), backend.work_shape().bytes_per_call};
  require_same("work", record, ranks);
}

SharedFolder open_together(const std::filesystem::path& folder, const Json& of, bool resume, Ranks& ranks,
                           Status& status) {
  using Earlier = PartialFolder::Earlier;
  const std::filesystem::path mark = folder / "rank_0";
  if (ranks.rank() == 0) {
    PartialFolder partial(folder, of, resume ? Earlier::kUse : Earlier::kReplace, &status);
    const std::string name = std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
    write_file(mark, name);
    ranks.put("folder", name);
    return {partial, true};
  }
  const std::string name = ranks.get("folder");
  const bool shared = std::filesystem::exists(mark) && read_text(mark) == name;
  return {PartialFolder(folder, of, shared ? Earlier::kLeave : Earlier::kReplace), shared};
}

std::vector<int> missing_layers(const std::vector<int>& all, const PartialFolder& folder, Ranks& ranks) {
  if (ranks.rank() == 0) {
    std::vector<int> missing = all;
    std::erase_if(missing, [&](int id) { return folder.has(id); });
    ranks.put("missing", Json(missing).dump());
  }
  return parse_json(ranks.get("missing"), "the layers of rank 0").get<std::vector<int>>();
}

std::vector<int> share_of(const std::vector<int>& layers, int rank, int size) {
  std::vector<int> own;
  for (auto i = static_cast<std::size_t>(rank); i < layers.size(); i += static_cast<std::size_t>(size)) {
    own.push_back(layers[i]);
  }
  return own;
}

TextShare share_of_text(Ranks& ranks, std::function<WorkShape()> work_shape) {
  return {
      .rank = ranks.rank(),
      .size = ranks.size(),
      .put = [&ranks](const std::string& key, const std::string& value) { ranks.put(key, value); },
      .take = [&ranks](const std::string& key) { return ranks.take(key); },
      .choose = [&ranks, work_shape = std::move(work_shape)](
                    const auto& layers) { return chunks_of_rank(layers, work_shape(), ranks.rank(), ranks.size()); }};
}

}  // namespace oscar
