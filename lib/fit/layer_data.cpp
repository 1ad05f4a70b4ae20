// SPDX-License-Identifier: MIT
#include "fit/layer_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

/// The first chunk's view, which tells head sizes; its rows may not be there.
QkvView shape_of(int layer_id, LayerStream& rows) {
  QkvChunk chunk;
  rows.rewind();
  if (rows.skip(chunk)) return chunk.view;
  throw DataError("no tokens", "layer " + std::to_string(layer_id), "dump again");
}

/// Those that one walk over the rows can take.
SumsWanted sums_of(const TakePlan& plan) {
  SumsWanted wanted{.moments = plan.moments, .windows = plan.windows};
  wanted.moments.erase(Moment::kSst);
  return wanted;
}

void require_data(int id, LayerStream& rows, HeldOutSplit split, const LayerParts& parts, const Windows& windows) {
  const std::string where = "layer " + std::to_string(id);
  if (parts.judged.empty()) {
    throw TooLittleData(
        fmt::format("no held-out sequence is longer than the windows ({} tokens)", windows.sink + windows.recent),
        where, "calibrate on longer sequences, or choose a recipe");
  }
  std::int64_t tokens = 0;
  std::size_t sequence = 0;
  QkvChunk chunk;
  rows.rewind();
  while (rows.skip(chunk)) {
    for (const SequenceRange& range : chunk.sequences) tokens += split.held_out(sequence++) ? 0 : range.size();
  }
  const std::int64_t needed = 4 * std::int64_t{chunk.view.k.head_dim};
  if (tokens >= needed) return;
  throw TooLittleData(
      fmt::format("{} to fit on beside those held out {} too few", plural(tokens, "token"), tokens == 1 ? "is" : "are"),
      where, fmt::format("give at least {} tokens, four for each channel", needed));
}

/// From the sequences that `takes` says.
void take_samples_of(LayerStream& rows, const TakesSequence& takes, const TakePlan& plan, LayerData& data) {
  if (plan.clip) data.clip = sample_layer(rows, plan.windows, *plan.clip, takes);
}

}  // namespace

LayerMoments moments_of(int layer_id, int key_dim, int value_dim, const AdditiveMoments& sums, Windows windows) {
  LayerMoments out{.layer_id = layer_id, .key_dim = key_dim, .value_dim = value_dim};
  for (const auto& [moment, each] : sums.sums) out.covariance[moment] = each.mean();
  if (sums.keys) out.key_mean = sums.keys->mean();
  if (!sums.fisher) return out;
  FisherMoments fisher = mean(*sums.fisher, windows);
  out.covariance[Moment::kFisher] = std::move(fisher.query);
  out.covariance[Moment::kFisherKey] = std::move(fisher.key);
  out.fisher_key_mean = std::move(fisher.key_mean);
  return out;
}

LayerMoments take_moments(int layer_id, LayerStream& rows, const TakePlan& plan, Backend& backend) {
  const QkvView shape = shape_of(layer_id, rows);
  LayerMoments out =
      moments_of(layer_id, shape.k.head_dim, shape.v.head_dim, take(rows, sums_of(plan), backend), plan.windows);
  if (plan.moments.contains(Moment::kSst)) {
    out.covariance[Moment::kSst] = take_sst(rows, out.covariance.at(Moment::kQqt), backend).mean();
  }
  return out;
}

void take_samples(LayerStream& rows, const TakePlan& plan, LayerData& data) { take_samples_of(rows, {}, plan, data); }

LayerParts take_parts(int layer_id, LayerStream& rows, const TakePlan& plan, HeldOutSplit split,
                      const SampleOptions& judging, Backend& backend) {
  const TakesSequence fitted = [split](std::size_t i) { return !split.held_out(i); };
  const TakesSequence held_out = [split](std::size_t i) { return split.held_out(i); };
  LayerParts parts;
  parts.judged = sample_layer(rows, plan.windows, judging, held_out);
  require_data(layer_id, rows, split, parts, plan.windows);
  const QkvView shape = shape_of(layer_id, rows);
  std::vector<AdditiveMoments> sums = take(rows, std::array{fitted, held_out}, sums_of(plan), backend);
  const auto means = [&] { return moments_of(layer_id, shape.k.head_dim, shape.v.head_dim, sums[0], plan.windows); };
  parts.part.moments = means();
  sums[0].merge(sums[1]);
  parts.whole.moments = means();
  auto &part = parts.part.moments.covariance, &whole = parts.whole.moments.covariance;
  if (plan.moments.contains(Moment::kSst)) {
    const std::array<ScoreWeighting, 2> weightings{ScoreWeighting{&part.at(Moment::kQqt), fitted},
                                                   ScoreWeighting{&whole.at(Moment::kQqt)}};
    const std::vector<MomentSums> sst = take_sst(rows, weightings, backend);
    part[Moment::kSst] = sst[0].mean(), whole[Moment::kSst] = sst[1].mean();
  }
  take_samples_of(rows, fitted, plan, parts.part);
  take_samples_of(rows, {}, plan, parts.whole);
  return parts;
}

}  // namespace oscar
