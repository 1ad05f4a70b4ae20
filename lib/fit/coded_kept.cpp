// SPDX-License-Identifier: MIT
#include "fit/coded_kept.hpp"

#include <string>
#include <utility>

#include "base/errors.hpp"
#include "base/version.hpp"
#include "fit/coded_data_file.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

Tensor tensor_of_costs(const MatrixStack& matrices) {
  return Tensor::from({matrices.count, matrices.dim, matrices.dim}, std::span<const double>(matrices.data));
}

MatrixStack costs_of_tensor(const Tensor& tensor) {
  MatrixStack matrices(static_cast<int>(tensor.shape.at(0)), static_cast<int>(tensor.shape.at(1)));
  matrices.data = tensor.to_doubles();
  return matrices;
}

}  // namespace

Json describe_coded_data(const QkvSource& source, Windows windows, const Json& recipe) {
  return {{"oscar_version", kVersion},
          {"model", to_json(source.model())},
          {"calibration", to_json(source.calibration())},
          {"layers", source.layer_ids()},
          {"recipe", recipe},
          {"windows", {windows.sink, windows.recent}}};
}

KeptLayers<CodedLayerData> kept_coded(const PartialFolder* folder, CodedData about) {
  return {folder,
          [about = std::move(about)](const std::filesystem::path& path, const CodedLayerData& layer) {
            write_coded_data(path, {about.model, about.data, about.windows, {layer}, about.recipe});
          },
          [](const std::filesystem::path& path, int layer_id) {
            CodedData data = read_coded_data({path});
            if (data.layers.size() == 1 && data.layers.front().sums.layer_id == layer_id) {
              return std::move(data.layers.front());
            }
            throw DataError("this is not layer " + std::to_string(layer_id), path.string(), "remove it");
          }};
}

std::filesystem::path file_of_costs(const PartialFolder& folder) { return folder.path() / "layer_costs.safetensors"; }

std::map<int, ErrorCost> kept_costs(const PartialFolder& folder, const std::function<std::map<int, ErrorCost>()>& ask) {
  const std::filesystem::path path = file_of_costs(folder);
  std::map<int, ErrorCost> costs;
  if (std::filesystem::exists(path)) {
    const SafetensorsFile file(path);
    for (const auto& [name, tensor] : file.tensors()) {
      const std::size_t dot = name.find('.');
      ErrorCost& cost = costs[std::stoi(name.substr(0, dot))];
      (name.substr(dot) == ".key" ? cost.key : cost.value) = costs_of_tensor(file.load(name));
    }
    return costs;
  }
  costs = ask();
  if (costs.empty()) return costs;  // nobody knows them
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& [layer, cost] : costs) {
    tensors.emplace_back(std::to_string(layer) + ".key", tensor_of_costs(cost.key));
    tensors.emplace_back(std::to_string(layer) + ".value", tensor_of_costs(cost.value));
  }
  write_safetensors(path, tensors, {}, Checksums::kYes);
  return costs;
}

}  // namespace oscar
