// SPDX-License-Identifier: MIT
#include "fit/layer_parts_file.hpp"

#include <cstring>

#include "base/errors.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

constexpr const char* kCovariance = "covariance.";

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
    out.emplace_back(own + "v", sample[i].v);
    out.emplace_back(own + "positions", std::move(kept));
  }
}

void add_data(const std::string& prefix, const LayerData& data, NamedTensors& out) {
  for (const auto& [moment, stack] : data.moments.covariance) {
    out.emplace_back(prefix + kCovariance + std::string(name_of(moment)),
                     doubles({stack.count, stack.dim, stack.dim}, stack.data));
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
    if (!moment) continue;
    MatrixStack stack(static_cast<int>(tensor.shape.at(0)), static_cast<int>(tensor.shape.at(1)));
    stack.data = file.load(name).to_doubles();
    data.moments.covariance[*moment] = std::move(stack);
  }
  data.moments.key_mean = vector_of(file, prefix + "key_mean");
  data.moments.fisher_key_mean = vector_of(file, prefix + "fisher_key_mean");
  return data;
}

}  // namespace

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
