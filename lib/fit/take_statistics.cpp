// SPDX-License-Identifier: MIT
#include "fit/take_statistics.hpp"

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "fit/layer_moments.hpp"
#include "work/layer_lanes.hpp"

namespace oscar {
namespace {

const LayerStatistics& layer_of(const Statistics& statistics, int id) {
  for (const LayerStatistics& layer : statistics.layers) {
    if (layer.layer_id == id && layer.first.sums.contains("qqt")) return layer;
  }
  throw DataError("no query moments of layer " + std::to_string(id), "--stats",
                  "merge the first pass of all parts, taken with --value-objective sst");
}

/// Before hours of work: the first pass is of this model, and of this part of the data too.
void require_part_of(const Statistics& first_pass, const QkvSource& source) {
  if (!(first_pass.model == source.model())) {
    throw DataError("the statistics are of another model than the data", "--stats",
                    "give the merged first pass of this model");
  }
  const auto& data = first_pass.data;
  if (std::find(data.begin(), data.end(), source.calibration()) == data.end()) {
    throw DataError("the first pass was not taken of this data", "--stats",
                    "merge the first passes of all parts, this one among them");
  }
  for (const int id : source.layer_ids()) (void)layer_of(first_pass, id);
}

/// False: the stream has no tokens, and rows no size.
bool take_sizes(LayerStream& stream, LayerStatistics& layer) {
  QkvChunk chunk;
  stream.rewind();
  if (!stream.skip(chunk)) return false;
  layer.key_dim = chunk.view.k.head_dim, layer.value_dim = chunk.view.v.head_dim;
  return true;
}

/// Tells the source which chunks of a layer hold the share's blocks.
void expect_blocks(QkvSource& source, const LayerShare& share, const WorkShape& shape) {
  source.expect({});  // to count them takes at most the first chunk
  source.expect_part(share.layer_id, 0, 0);
  const std::vector<std::size_t> ends = ends_of_blocks(*source.open(share.layer_id), shape);
  const auto begin_of = [&](std::int64_t block) {
    const auto before = static_cast<std::size_t>(std::min<std::int64_t>(block, std::ssize(ends)));
    return before == 0 ? 0 : ends[before - 1];
  };
  source.expect_part(share.layer_id, begin_of(share.blocks.first), begin_of(share.blocks.last));
}

}  // namespace

Recipe recipe_of_sums(const FitOptions& options) {
  const auto refuse = [](const std::string& what, const char* where, const char* advice) {
    throw UsageError(what + " looks at rows, which statistics do not keep", where, advice);
  };
  if (options.recipe == "hadamard") {
    throw UsageError("recipe hadamard looks at no data but for its clip ratios", "--recipe",
                     "fit it on --dump or --model");
  }
  if (options.recipe == "auto" || options.recipe == "uresidual") {
    refuse("recipe " + options.recipe, "--recipe", "use oscar, lsq, stretch or ktk_vtv, or fit on --dump or --model");
  }
  if (options.refine) refuse("refinement", "--refine", "leave it out, or fit on --dump or --model");
  if (options.value_objective == "output") {
    refuse("value objective output", "--value-objective", "use sst, oto or vtv, or fit on --model");
  }
  return resolve_recipe(options);
}

std::vector<LayerShare> shares_of(const std::vector<int>& layers, std::int64_t blocks, int rank, int size) {
  const std::int64_t all = static_cast<std::int64_t>(layers.size()) * blocks;
  const std::int64_t begin = all * rank / size, end = all * (rank + 1) / size;
  std::vector<LayerShare> shares;
  for (std::int64_t i = begin; i < end; i = (i / blocks + 1) * blocks) {
    const std::int64_t layer = i / blocks, last = std::min(end - layer * blocks, blocks);
    shares.push_back({layers[static_cast<std::size_t>(layer)], {i % blocks, last == blocks ? INT64_MAX : last}});
  }
  return shares;
}

StatisticsTaker::StatisticsTaker(QkvSource& source, const FitOptions& options, const Statistics* first_pass,
                                 Backend& backend, Status& status)
    : source_(source),
      recipe_(recipe_of_sums(options)),
      first_pass_(first_pass),
      backend_(backend),
      status_(status),
      untaken_{.model = source.model(), .data = {source.calibration()}, .windows = options.windows} {
  if (first_pass_ == nullptr) return;
  require_part_of(*first_pass_, source_);
  untaken_.query_moments_sha256 = query_moments_sha256(*first_pass_);
}

Statistics StatisticsTaker::alone(LayerStatistics layer) const {
  Statistics out = untaken_;
  out.layers = {std::move(layer)};
  return out;
}

LayerStatistics StatisticsTaker::take_blocks(int id, LayerStream& stream) const {
  LayerStatistics layer{.layer_id = id};
  if (!take_sizes(stream, layer)) throw DataError("no tokens", "layer " + std::to_string(id), "dump again");
  if (first_pass_ == nullptr) {
    layer.first = take_sums(stream, {recipe_}, backend_);
    layer.first_data = {0};
  } else {
    const MatrixStack queries = layer_of(*first_pass_, id).first.sums.at("qqt").mean();
    layer.sst = score_weighted_value_moments(stream, queries, backend_);
    layer.sst_data = {0};
  }
  return layer;
}

void StatisticsTaker::take(std::span<const LayerShare> shares, const Taken& taken) {
  std::vector<int> ids;
  for (const LayerShare& share : shares) ids.push_back(share.layer_id);
  const WorkShape shape = backend_.work_shape();
  for (const LayerShare& share : shares) {
    if (!share.blocks.whole()) expect_blocks(source_, share, shape);
  }
  std::atomic<std::int64_t> done = 0;
  for_each_layer(source_, ids, shape.concurrent_layers, [&](std::size_t i, std::unique_ptr<LayerStream> stream) {
    const BlockRange& blocks = shares[i].blocks;
    std::vector<LayerStatistics> sums;
    if (blocks.whole()) {
      sums.push_back(take_blocks(ids[i], *stream));
    } else if (blocks.first == 0) {
      sums.push_back(take_blocks(ids[i], *blocks_of(*stream, blocks, shape)));
    } else {
      const std::int64_t last = std::min(blocks.last, std::ssize(ends_of_blocks(*stream, shape)));
      for (std::int64_t block = blocks.first; block < last; ++block) {
        sums.push_back(take_blocks(ids[i], *blocks_of(*stream, {block, block + 1}, shape)));
      }
    }
    taken(i, std::move(sums));
    status_.progress("statistics: layer", ++done, static_cast<std::int64_t>(ids.size()));
  });
}

Statistics StatisticsTaker::take_all() {
  std::vector<LayerShare> shares;
  for (const int id : source_.layer_ids()) shares.push_back({id, {}});
  Statistics out = untaken_;
  out.layers.resize(shares.size());
  take(shares, [&](std::size_t i, std::vector<LayerStatistics> sums) { out.layers[i] = std::move(sums.front()); });
  return out;
}

void add_block(LayerStatistics& sums, const LayerStatistics& next) {
  OSCAR_CHECK(sums.layer_id == next.layer_id && sums.sst.has_value() == next.sst.has_value());
  sums.first.merge(next.first);
  if (sums.sst) sums.sst->merge(*next.sst);
}

void PartialStatistics::add(const Statistics& one_layer) const {
  OSCAR_CHECK(one_layer.layers.size() == 1);
  write_statistics(file_of(one_layer.layers.front().layer_id), one_layer);
}

std::filesystem::path PartialStatistics::file_of_piece(const LayerShare& share, std::size_t piece) const {
  return path() / ("layer_" + std::to_string(share.layer_id) + "_from_" + std::to_string(share.blocks.first) + "_" +
                   std::to_string(piece) + ".safetensors");
}

void PartialStatistics::join_pieces(const std::vector<std::filesystem::path>& pieces) const {
  Statistics layer = read_statistics({pieces.front()});
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    add_block(layer.layers.front(), read_statistics({pieces[i]}).layers.front());
  }
  add(layer);
  for (const auto& piece : pieces) std::filesystem::remove(piece);
}

Statistics PartialStatistics::join(const std::vector<int>& layers) const {
  std::vector<std::filesystem::path> files;
  for (const int id : layers) files.push_back(file_of(id));
  return read_statistics(files);
}

}  // namespace oscar
