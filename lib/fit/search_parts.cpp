// SPDX-License-Identifier: MIT
#include "fit/search_parts.hpp"

#include <fmt/format.h>

#include <cstring>

#include "base/text.hpp"
#include "fit/refine.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

constexpr const char* kCovariance = "covariance.";

Fitting take_fitting(int id, LayerStream& stream, const AdditiveMoments& sums, const PartsPlan& plan,
                     Backend& backend) {
  Fitting fitting{take_moments(id, stream, sums, plan.recipes, {}, backend, plan.output_projection), {}, {}};
  if (plan.options.refining.steps > 0) {
    fitting.refine = sample_for_refining(stream, plan.options.windows, plan.options.refining);
  }
  fitting.clip = plan.clip.sample(stream);
  return fitting;
}

void require_data(int id, LayerStream& fitted, const LayerParts& parts, const Windows& windows) {
  const std::string where = "layer " + std::to_string(id);
  if (parts.judged.empty()) {
    throw TooLittleData(
        fmt::format("no held-out sequence is longer than the windows ({} tokens)", windows.sink + windows.recent),
        where, "calibrate on longer sequences, or choose a recipe");
  }
  std::int64_t tokens = 0;
  QkvChunk chunk;
  fitted.rewind();
  while (fitted.skip(chunk)) tokens += chunk.view.k.num_tokens;
  const std::int64_t needed = 4 * std::int64_t{chunk.view.k.head_dim};
  if (tokens >= needed) return;
  throw TooLittleData(
      fmt::format("{} to fit on beside those held out {} too few", plural(tokens, "token"), tokens == 1 ? "is" : "are"),
      where, fmt::format("give at least {} tokens, four for each channel", needed));
}

Tensor doubles(std::vector<std::int64_t> shape, const std::vector<double>& values) {
  Tensor tensor(DType::kF64, std::move(shape));
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

void add_vector(const std::string& name, const std::vector<double>& values, NamedTensors& out) {
  if (!values.empty()) out.emplace_back(name, doubles({static_cast<std::int64_t>(values.size())}, values));
}

void add_sample(const std::string& prefix, const std::vector<SampledSequence>& sample, NamedTensors& out) {
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const std::string own = prefix + std::to_string(i) + ".";
    const std::vector<std::int64_t>& positions = sample[i].query_positions;
    Tensor kept(DType::kI64, {static_cast<std::int64_t>(positions.size())});
    std::memcpy(kept.data.data(), positions.data(), kept.data.size());
    out.emplace_back(own + "q", sample[i].q);
    out.emplace_back(own + "k", sample[i].k);
    if (!sample[i].v.data.empty()) out.emplace_back(own + "v", sample[i].v);  // refining keys needs none
    out.emplace_back(own + "positions", std::move(kept));
  }
}

void add_fitting(const std::string& prefix, const Fitting& fitting, NamedTensors& out) {
  for (const auto& [name, stack] : fitting.moments.covariance) {
    out.emplace_back(prefix + kCovariance + name, doubles({stack.count, stack.dim, stack.dim}, stack.data));
  }
  add_vector(prefix + "key_mean", fitting.moments.key_mean, out);
  add_vector(prefix + "fisher_key_mean", fitting.moments.fisher_key_mean, out);
  add_sample(prefix + "refine.", fitting.refine, out);
  add_sample(prefix + "clip.", fitting.clip, out);
}

std::vector<double> vector_of(const SafetensorsFile& file, const std::string& name) {
  return file.tensors().contains(name) ? file.load(name).to_doubles() : std::vector<double>();
}

std::vector<SampledSequence> sample_of(const SafetensorsFile& file, const std::string& prefix) {
  std::vector<SampledSequence> sample;
  for (std::size_t i = 0;; ++i) {
    const std::string own = prefix + std::to_string(i) + ".";
    if (!file.tensors().contains(own + "q")) return sample;
    const bool has_values = file.tensors().contains(own + "v");
    sample.push_back({file.load(own + "q"), file.load(own + "k"), has_values ? file.load(own + "v") : Tensor(),
                      file.load(own + "positions").to_int64()});
  }
}

Fitting fitting_of(const SafetensorsFile& file, const std::string& prefix, const LayerMoments& about) {
  Fitting fitting{about, sample_of(file, prefix + "refine."), sample_of(file, prefix + "clip.")};
  const std::string start = prefix + kCovariance;
  for (const auto& [name, tensor] : file.tensors()) {
    if (!name.starts_with(start) || tensor.shape.size() != 3) continue;
    MatrixStack stack(static_cast<int>(tensor.shape.at(0)), static_cast<int>(tensor.shape.at(1)));
    stack.data = file.load(name).to_doubles();
    fitting.moments.covariance[name.substr(start.size())] = std::move(stack);
  }
  fitting.moments.key_mean = vector_of(file, prefix + "key_mean");
  fitting.moments.fisher_key_mean = vector_of(file, prefix + "fisher_key_mean");
  return fitting;
}

}  // namespace

ClipFitOptions judging_options(const FitOptions& options) { return {.seed = options.clip_fit.seed + 2}; }

LayerParts take_parts(int layer_id, LayerStream& whole, const PartsPlan& plan, Backend& backend) {
  LayerParts parts;
  PartStream fitted(whole, plan.split, false), held_out(whole, plan.split, true);
  parts.judged = sample_layer(held_out, plan.options.windows, judging_options(plan.options));
  require_data(layer_id, fitted, parts, plan.options.windows);
  AdditiveMoments sums = take_sums(fitted, plan.recipes, backend);
  parts.part = take_fitting(layer_id, fitted, sums, plan, backend);
  sums.merge(take_sums(held_out, plan.recipes, backend));
  parts.whole = take_fitting(layer_id, whole, sums, plan, backend);
  return parts;
}

void write_parts(const std::filesystem::path& path, const LayerParts& parts) {
  const LayerMoments& moments = parts.whole.moments;
  NamedTensors tensors;
  add_fitting("part.", parts.part, tensors);
  add_fitting("whole.", parts.whole, tensors);
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
  LayerParts parts{fitting_of(file, "part.", about), fitting_of(file, "whole.", about), sample_of(file, "judged.")};
  if (number("layer_id") != layer_id || about.key_dim < 1 || about.value_dim < 1 || parts.judged.empty()) {
    throw DataError("these are not the sums and samples of layer " + std::to_string(layer_id), path.string(),
                    "remove it: the layer will be read again");
  }
  return parts;
}

}  // namespace oscar
