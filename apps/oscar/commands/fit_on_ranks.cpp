// SPDX-License-Identifier: MIT
// What several processes make together, each with the bytes of one process: rotations, statistics, the coded cache.
#include <chrono>
#include <filesystem>

#include "base/atomic_file.hpp"
#include "base/clock.hpp"
#include "base/files.hpp"
#include "commands/coded_taker.hpp"
#include "commands/fit_in_parts.hpp"
#include "commands/on_ranks.hpp"
#include "fit/enough_tokens.hpp"
#include "rotation/formats.hpp"

namespace oscar {
namespace {

/// Returns what errors cost, as rank 0 was told by the model, or had kept.
ErrorCosts costs_of_all(CodedTaker& taker, const PartialFolder& kept, Ranks& ranks) {
  if (ranks.rank() == 0) {
    ErrorCosts costs = kept_costs(kept, [&] { return taker.costs(); });
    ranks.put("costs", costs.empty() ? "" : read_text(file_of_costs(kept)));
    return costs;
  }
  const std::string from_rank_0 = ranks.get("costs");
  if (from_rank_0.empty()) return {};
  if (!std::filesystem::exists(file_of_costs(kept))) write_file(file_of_costs(kept), from_rank_0);
  return kept_costs(kept, {});
}

}  // namespace

void fit_on_ranks(Ranks& ranks, FitCommand& command, Context& context) {
  fit_together(ranks, command, context, [&](FitInput& input, Backend& backend) {
    Status& status = *context.status;
    if (const auto few = too_few_tokens(input.source(), command.fit)) status.notice(*few);
    const FitHooks hooks{.output_projection = input.output_projection()};
    auto times = std::make_shared<Times>();
    auto start = std::make_shared<std::chrono::steady_clock::time_point>();
    RankedFit fit{{.record = fit_record(input, command), .folder = partial_folder(command)}};
    fit.work.make = [=, &input, &command, &context, &backend](std::span<const int> layers, const PartialFolder& kept) {
      times->startup = seconds_since(context.started);
      *start = std::chrono::steady_clock::now();
      FitHooks own = hooks;
      own.kept = &kept;
      fit_layers(input.source(), layers, command.fit, backend, *context.status, own);
    };
    fit.finish = [=, &input, &command, &context, &backend](const PartialFolder& kept) {
      FitHooks own = hooks;
      own.kept = &kept;
      FitResult result = oscar::fit(input.source(), command.fit, backend, *context.status, own);
      result.seconds = seconds_since(*start);
      const auto fitted = std::chrono::steady_clock::now();
      write_rotation_set(command.out, result.set, parse_rotation_formats(command.formats), command.force);
      times->writing = seconds_since(fitted);
      report(result, *times, command, backend, context);
    };
    return fit;
  });
}

void statistics_on_ranks(Ranks& ranks, const FitCommand& command, const Statistics* first_pass, Context& context) {
  fit_together(ranks, command, context, [&](FitInput& input, Backend& backend) {
    auto taker = std::make_shared<StatisticsTaker>(input.source(), command.fit, first_pass, backend, *context.status);
    const auto start = std::chrono::steady_clock::now();
    RankedFit fit{{.record = statistics_record(input, command, *taker), .folder = statistics_folder(command)}};
    fit.work.make = [taker](std::span<const int> layers, const PartialFolder& kept) { taker->take(layers, kept); };
    fit.finish = [taker, start, &command, &context](const PartialFolder& kept) {
      save(taker->take_all(&kept), command, start, context);
    };
    return fit;
  });
}

void fit_coded_on_ranks(Ranks& ranks, const FitCommand& command, Context& context) {
  fit_together(ranks, command, context, [&](FitInput& input, Backend& backend) {
    auto taker = std::make_shared<CodedTaker>(command, input, backend, *context.status);
    auto costs = std::make_shared<ErrorCosts>();
    const auto start = std::chrono::steady_clock::now();
    RankedFit fit{{.record = taker->record(), .folder = coded_partial_folder(command)}};
    fit.work.make = [=, &ranks](std::span<const int> layers, const PartialFolder& kept) {
      *costs = costs_of_all(*taker, kept, ranks);
      taker->fit().take(layers, *costs, kept);
    };
    fit.finish = [=, &command, &context, &backend](const PartialFolder& kept) {
      finish_coded(command, taker->fit().take_all(*costs, &kept), start, backend, context);
    };
    return fit;
  });
}

}  // namespace oscar
