// SPDX-License-Identifier: MIT
// Statistics by several processes: of a dump each takes a run of all layers' blocks, of a model every layer's blocks of
// its part of the text; they are added up, and rank 0 writes the file. Blocks and the order in which they are added do
// not depend on who takes them, so that the file has the same bytes as that of one process.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/atomic_file.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "commands/fit_in_parts.hpp"
#include "commands/on_ranks.hpp"
#include "fit/take_statistics.hpp"

namespace oscar {
namespace {

/// Layers that are still to be taken, and of how many blocks one is that can be shared.
struct Work {
  std::vector<int> layers;
  std::int64_t blocks = 1;
};

Work find_work(QkvSource& source, std::vector<int> missing, const WorkShape& shape, Ranks& ranks) {
  Work work{std::move(missing)};
  if (ranks.rank() == 0) {
    std::int64_t blocks = 1;
    if (!work.layers.empty())
      blocks = std::max<std::int64_t>(1, std::ssize(ends_of_blocks(*source.open(work.layers.front()), shape)));
    ranks.put("blocks", std::to_string(blocks));
  }
  work.blocks = parse_json(ranks.get("blocks"), "the blocks of rank 0").get<std::int64_t>();
  return work;
}

std::string key_of(const LayerShare& share) { return fmt::format("sums/{}/{}", share.layer_id, share.blocks.first); }

/// Files of a share's sums: the layer's own, or those of pieces that will be joined.
using Files = std::vector<std::filesystem::path>;
Files files_of(const LayerShare& share, std::size_t count, const PartialStatistics& partial) {
  if (share.blocks.whole()) return {partial.file_of(share.layer_id)};
  Files files;
  for (std::size_t i = 0; i < count; ++i) files.push_back(partial.file_of_piece(share, i));
  return files;
}

/// Takes this rank's shares and keeps them; the number of each one's files.
std::vector<std::size_t> take_own(StatisticsTaker& taker, const std::vector<LayerShare>& shares,
                                  const PartialStatistics& partial) {
  std::vector<std::size_t> counts(shares.size());
  taker.take(shares, [&](std::size_t i, std::vector<LayerStatistics> sums) {
    counts[i] = sums.size();
    const Files files = files_of(shares[i], sums.size(), partial);
    for (std::size_t k = 0; k < files.size(); ++k) write_statistics(files[k], taker.alone(std::move(sums[k])));
  });
  return counts;
}

void hand_over(const std::vector<LayerShare>& shares, const std::vector<std::size_t>& counts,
               const PartialStatistics& partial, Ranks& ranks) {
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const Files files = files_of(shares[i], counts[i], partial);
    ranks.put(key_of(shares[i]), std::to_string(files.size()));
    for (std::size_t k = 0; k < files.size(); ++k) {
      ranks.put(key_of(shares[i]) + "/" + std::to_string(k), read_text(files[k]));
    }
  }
}

/// Brings all shares into rank 0's folder and joins the pieces of layers that were shared.
void collect(const Work& work, const std::vector<std::size_t>& own_counts, const PartialStatistics& partial,
             Ranks& ranks) {
  Files pieces;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<LayerShare> shares = shares_of(work.layers, work.blocks, rank, ranks.size());
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const std::size_t count =
          rank == 0 ? own_counts[i] : parse_json(ranks.take(key_of(shares[i])), "a rank's sums").get<std::size_t>();
      const Files files = files_of(shares[i], count, partial);
      for (std::size_t k = 0; k < files.size() && rank > 0; ++k) {
        write_file(files[k], ranks.take(key_of(shares[i]) + "/" + std::to_string(k)));
      }
      if (shares[i].blocks.whole()) continue;
      pieces.insert(pieces.end(), files.begin(), files.end());
      if (shares[i].blocks.last < INT64_MAX) continue;
      partial.join_pieces(pieces);
      pieces.clear();
    }
  }
}

/// Of a model, whose text the ranks share: all of them get every layer's sums.
void take_of_model(StatisticsTaker& taker, const std::vector<int>& missing, FitInput& input,
                   const PartialStatistics& partial, Ranks& ranks) {
  input.deal(missing);
  input.wait_until_ready();
  std::vector<LayerShare> layers;
  for (const int id : missing) layers.push_back({id, {}});
  taker.take(layers, [&](std::size_t, std::vector<LayerStatistics> sums) {
    if (ranks.rank() == 0) partial.add(taker.alone(std::move(sums.front())));
  });
}

/// Of a dump, whose layers and blocks are dealt.
void take_of_dump(StatisticsTaker& taker, const Work& work, const PartialStatistics& partial, Ranks& ranks) {
  const std::vector<LayerShare> own = shares_of(work.layers, work.blocks, ranks.rank(), ranks.size());
  const std::vector<std::size_t> counts = take_own(taker, own, partial);
  if (ranks.rank() == 0) return collect(work, counts, partial, ranks);
  hand_over(own, counts, partial, ranks);
}

void take_together(Ranks& ranks, const FitCommand& command, FitInput& input, const Statistics* first_pass,
                   Backend& backend, Context& context) {
  const auto start = std::chrono::steady_clock::now();
  QkvSource& source = input.source();
  StatisticsTaker taker(source, command.fit, first_pass, backend, *context.status);
  const Json record = statistics_record(input, command, taker);
  require_same_work(record, input, backend, ranks);
  auto [folder, shared] = open_together(statistics_folder(command), record, command.resume, ranks, *context.status);
  const PartialStatistics partial(std::move(folder));
  std::vector<int> missing = missing_layers(source.layer_ids(), partial, ranks);
  if (input.runner() != nullptr) {
    take_of_model(taker, missing, input, partial, ranks);
  } else {
    take_of_dump(taker, find_work(source, std::move(missing), backend.work_shape(), ranks), partial, ranks);
  }
  if (ranks.rank() > 0) {
    if (!shared) partial.remove();
    return;
  }
  save(partial.join(source.layer_ids()), command, start, context);
  partial.remove();
}

}  // namespace

void statistics_on_ranks(Ranks& ranks, const FitCommand& command, const Statistics* first_pass, Context& context) {
  const std::unique_ptr<Backend> backend = make_backend(context.common.device, *context.status);
  FitInput input(command, context, share_of_text(ranks, [&backend] { return backend->work_shape(); }));
  tell_failure(ranks, [&] { take_together(ranks, command, input, first_pass, *backend, context); });
}

}  // namespace oscar
