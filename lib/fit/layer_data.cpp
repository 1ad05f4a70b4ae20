// SPDX-License-Identifier: MIT
#include "fit/layer_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

/// The first chunk's view, which tells head sizes; its rows may not be there.
QkvView shape_of(int layer_id, LayerStream& rows) {
  QkvChunk chunk;
  rows.rewind();
  if (rows.skip(chunk)) return chunk.view;
  throw DataError("no tokens", "layer " + std::to_string(layer_id), "dump again");
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

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

constexpr const char* kCovariance = "covariance.";

void add_vector(const std::string& name, const std::vector<double>& values, NamedTensors& out) {
  if (!values.empty()) out.emplace_back(name, Tensor::from({std::ssize(values)}, values));
}

void add_sample(const std::string& prefix, const std::vector<SampledSequence>& sample, NamedTensors& out) {
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const std::string own = prefix + std::to_string(i) + ".";
    const std::vector<std::int64_t>& positions = sample[i].query_positions;
    Tensor kept(DType::kI64, {static_cast<std::int64_t>(positions.size())});
    std::memcpy(kept.data.data(), positions.data(), kept.data.size());
    out.emplace_back(own + "q", sample[i].q);
    out.emplace_back(own + "k", sample[i].k);
    out.emplace_back(own + "v", sample[i].v);
    out.emplace_back(own + "positions", std::move(kept));
  }
}

void add_data(const std::string& prefix, const LayerData& data, NamedTensors& out) {
  for (const auto& [moment, stack] : data.moments.covariance) {
    out.emplace_back(prefix + kCovariance + std::string(name_of(moment)),
                     Tensor::from({stack.count, stack.dim, stack.dim}, stack.data));
  }
  add_vector(prefix + "key_mean", data.moments.key_mean, out);
  add_vector(prefix + "fisher_key_mean", data.moments.fisher_key_mean, out);
  add_sample(prefix + "clip.", data.clip, out);
}

std::vector<double> vector_of(const SafetensorsFile& file, const std::string& name) {
  return file.tensors().contains(name) ? file.load(name).to_doubles() : std::vector<double>();
}

std::vector<SampledSequence> sample_of(const SafetensorsFile& file, const std::string& prefix) {
  std::vector<SampledSequence> sample;
  for (std::size_t i = 0;; ++i) {
    const std::string own = prefix + std::to_string(i) + ".";
    if (!file.tensors().contains(own + "q")) return sample;
    sample.push_back(
        {file.load(own + "q"), file.load(own + "k"), file.load(own + "v"), file.load(own + "positions").to_int64()});
  }
}

LayerData data_of(const SafetensorsFile& file, const std::string& prefix, const LayerMoments& about) {
  LayerData data{about, sample_of(file, prefix + "clip.")};
  const std::string start = prefix + kCovariance;
  for (const auto& [name, tensor] : file.tensors()) {
    if (!name.starts_with(start) || tensor.shape.size() != 3) continue;
    const std::optional<Moment> moment = find_moment(name.substr(start.size()));
    if (moment) data.moments.covariance[*moment] = MatrixStack::from(file.load(name), name);
  }
  data.moments.key_mean = vector_of(file, prefix + "key_mean");
  data.moments.fisher_key_mean = vector_of(file, prefix + "fisher_key_mean");
  return data;
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
  LayerMoments out = moments_of(layer_id, shape.k.head_dim, shape.v.head_dim,
                                take(rows, {plan.moments, plan.windows}, backend), plan.windows);
  if (plan.moments.contains(Moment::kSst)) {
    out.covariance[Moment::kSst] = take_sst(rows, out.covariance.at(Moment::kQqt), backend).mean();
  }
  return out;
}

void take_samples(LayerStream& rows, const TakePlan& plan, LayerData& data, const TakesSequence& takes) {
  if (plan.clip) data.clip = sample_layer(rows, plan.windows, *plan.clip, takes);
}

LayerParts take_parts(int layer_id, LayerStream& rows, const TakePlan& plan, HeldOutSplit split,
                      const SampleOptions& judging, Backend& backend) {
  const TakesSequence fitted = [split](std::size_t i) { return !split.held_out(i); };
  const TakesSequence held_out = [split](std::size_t i) { return split.held_out(i); };
  LayerParts parts;
  parts.judged = sample_layer(rows, plan.windows, judging, held_out);
  require_data(layer_id, rows, split, parts, plan.windows);
  const QkvView shape = shape_of(layer_id, rows);
  std::vector<AdditiveMoments> sums = take(rows, std::array{fitted, held_out}, {plan.moments, plan.windows}, backend);
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
  take_samples(rows, plan, parts.part, fitted);
  take_samples(rows, plan, parts.whole);
  return parts;
}

void write_parts(const std::filesystem::path& path, const LayerParts& parts) {
  const LayerMoments& moments = parts.whole.moments;
  NamedTensors tensors;
  add_data("part.", parts.part, tensors);
  add_data("whole.", parts.whole, tensors);
  add_sample("judged.", parts.judged, tensors);
  write_safetensors(path, tensors,
                    {{"layer_id", std::to_string(moments.layer_id)},
                     {"key_dim", std::to_string(moments.key_dim)},
                     {"value_dim", std::to_string(moments.value_dim)}},
                    Checksums::kYes);
}

LayerParts read_parts(const std::filesystem::path& path, int layer_id) {
  const SafetensorsFile file(path);
  const auto number = [&](const char* name) {
    const auto found = file.metadata().find(name);
    return found == file.metadata().end() ? 0 : std::atoi(found->second.c_str());
  };
  const LayerMoments about{.layer_id = layer_id, .key_dim = number("key_dim"), .value_dim = number("value_dim")};
  LayerParts parts{data_of(file, "part.", about), data_of(file, "whole.", about), sample_of(file, "judged.")};
  if (number("layer_id") != layer_id || about.key_dim < 1 || about.value_dim < 1 || parts.judged.empty()) {
    throw DataError("these are not the sums and samples of layer " + std::to_string(layer_id), path.string(),
                    "remove it: the layer will be read again");
  }
  return parts;
}

}  // namespace oscar
