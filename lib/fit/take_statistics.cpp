// SPDX-License-Identifier: MIT
#include "fit/take_statistics.hpp"

#include <algorithm>
#include <filesystem>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "fit/layer_data.hpp"

namespace oscar {
namespace {

const LayerStatistics& layer_of(const Statistics& statistics, int id) {
  for (const LayerStatistics& layer : statistics.layers) {
    if (layer.layer_id == id && layer.first.sums.contains(Moment::kQqt)) return layer;
  }
  throw DataError("no query moments of layer " + std::to_string(id), "--stats", "merge the first pass of all parts");
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

LayerStatistics take_layer(int id, LayerStream& rows, const Recipe& recipe, const Statistics* first_pass,
                           Backend& backend) {
  QkvChunk chunk;
  rows.rewind();
  if (!rows.skip(chunk)) throw DataError("no tokens", "layer " + std::to_string(id), "dump again");
  LayerStatistics layer{.layer_id = id, .key_dim = chunk.view.k.head_dim, .value_dim = chunk.view.v.head_dim};
  if (first_pass != nullptr) {
    layer.sst = take_sst(rows, layer_of(*first_pass, id).first.sums.at(Moment::kQqt).mean(), backend);
    layer.sst_data = {0};
    return layer;
  }
  SumsWanted wanted{.moments = recipe.moments(), .windows = recipe.windows};
  wanted.moments.erase(Moment::kSst);
  layer.first = take(rows, wanted, backend);
  layer.first_data = {0};
  return layer;
}

LayerStatistics read_taken(const std::filesystem::path& path, int layer_id) {
  std::vector<LayerStatistics> layers = read_statistics({path}).layers;
  if (layers.size() == 1 && layers.front().layer_id == layer_id) return std::move(layers.front());
  throw DataError("this is not layer " + std::to_string(layer_id), path.string(), "remove it");
}

}  // namespace

Recipe recipe_of_sums(const FitOptions& options) {
  if (options.recipe == "hadamard") {
    throw UsageError("recipe hadamard looks at no data but for its clip ratios", "--recipe",
                     "fit it on --dump or --model");
  }
  if (options.recipe == "auto") {
    throw UsageError("recipe auto looks at rows, which statistics do not keep", "--recipe",
                     "use oscar or stretch, or fit on --dump or --model");
  }
  return resolve_recipe(options);
}

Statistics take_statistics(QkvSource& source, const FitOptions& options, const Statistics* first_pass,
                           const PartialFolder* folder, Backend& backend, Status& status) {
  const Recipe recipe = recipe_of_sums(options);
  Statistics out{.model = source.model(), .data = {source.calibration()}, .windows = options.windows};
  if (first_pass != nullptr) {
    require_part_of(*first_pass, source);
    out.query_moments_sha256 = query_moments_sha256(*first_pass);
  }
  const auto write = [about = out](const std::filesystem::path& path, const LayerStatistics& layer) {
    Statistics alone = about;
    alone.layers = {layer};
    write_statistics(path, alone);
  };
  out.layers = take_layers<LayerStatistics>(
      source, {folder, write, read_taken}, "statistics: layer", backend.work_shape().concurrent_layers,
      [&](int id, LayerStream& rows) { return take_layer(id, rows, recipe, first_pass, backend); }, status);
  return out;
}

}  // namespace oscar
