// SPDX-License-Identifier: MIT
#include "commands/on_ranks.hpp"

#include <unistd.h>

#include <algorithm>
#include <future>
#include <memory>

#include "base/cores.hpp"
#include "base/errors.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "console.hpp"

namespace oscar {
namespace {

/// Ranks of one machine share its GPUs, and those cores that a launcher has not dealt among them.
void take_share_of_machine(const Place& place, const Ranks& ranks, CommonOptions& common) {
  const int gpus = common.device == "auto" || common.device == "cuda" ? cuda_device_count() : 0;
  if (gpus > 0) common.device = "cuda:" + std::to_string(place.local_rank % gpus);
  if (common.threads == 0) set_num_threads(std::max(1, usable_cores().count / ranks.sharers_of_cores()));
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

/// Runs a task; if it fails, tells the others why and interrupts what it began, before anybody waits for that.
void tell_failure(Ranks& ranks, const std::function<void()>& task) {
  try {
    task();
  } catch (const std::exception& error) {
    ranks.fail(text_of(error));
    if (!interrupt_requested()) interrupt(as_rank_failed(error));
    throw;
  }
}

/// Waits until all ranks can begin: the time that a fit takes is then nobody's start.
void wait_until_all_are_ready(Ranks& ranks) {
  const auto key_of = [](int rank) { return "ready/" + std::to_string(rank); };
  ranks.put(key_of(ranks.rank()), "");
  for (int rank = 0; rank < ranks.size(); ++rank) (void)ranks.get(key_of(rank));
}

/// What last bits of sums depend on.
Json arithmetic_of(FitInput& input, const Backend& backend) {
  Json json = Json::object();
  if (input.runner() != nullptr) {
    const std::string runs = input.runner()->description();  // "cuda:1, bfloat16"
    json["model_dtype"] = runs.substr(runs.rfind(' ') + 1);
  }
  const std::string description = backend.description();
  json["device"] = {description.substr(0, description.find_first_of(":,")), backend.work_shape().bytes_per_call};
  return json;
}

}  // namespace

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

void fit_together(Ranks& ranks, const FitCommand& command, Context& context,
                  const std::function<RankedFit(FitInput&, Backend&)>& plan) {
  // A GPU takes a while to start: meanwhile the input is opened.
  const std::shared_future<std::shared_ptr<Backend>> starting =
      std::async(std::launch::async, [&context]() -> std::shared_ptr<Backend> { return start_backend(context); });
  FitInput input(command, context, share_of_text(ranks, [starting] { return starting.get()->work_shape(); }));
  tell_failure(ranks, [&] {
    Backend& backend = *starting.get();
    RankedFit fit = plan(input, backend);
    fit.work.arithmetic = arithmetic_of(input, backend);
    fit.work.resume = command.resume;
    fit.work.make = [&input, &ranks, make = std::move(fit.work.make)](std::span<const int> layers,
                                                                      const PartialFolder& folder) {
      input.wait_until_ready();
      wait_until_all_are_ready(ranks);
      make(layers, folder);
    };
    const auto kept = make_together(fit.work, input.source(), ranks, *context.status);
    if (!kept) return;
    fit.finish(*kept);
    kept->remove();
  });
}

}  // namespace oscar
