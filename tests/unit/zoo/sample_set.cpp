// SPDX-License-Identifier: MIT
#include "sample_set.hpp"

#include "base/atomic_file.hpp"
#include "base/sha256.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar::test {
namespace {

std::map<std::string, std::string> payload(const std::string& seed) {
  return {{"k_rotation_qqt_r_h_pbr.pt", std::string(5000, 'k') + seed},
          {"tables/clip.json", "{}\n"},
          {"v_rotation_sst_r_h_pbr.pt", seed + std::string(3000, 'v')}};
}

}  // namespace

Json sample_manifest(const std::string& seed) {
  const Json side = {{"clip_ratio", 0.96}, {"eigenvalues", nullptr}};
  Json files = Json::array();
  for (const auto& [path, content] : payload(seed)) {
    files.push_back({{"path", path}, {"sha256", sha256_hex(content)}, {"size", content.size()}});
  }
  const Json part = {{"recipe", {{"name", "oscar"}}},
                     {"objectives", {{"key", "qqt_r_h_pbr"}, {"value", "sst_r_h_pbr"}}},
                     {"codec",
                      {{"name", "minmax"},
                       {"levels", {4, 4}},
                       {"group_size", 0},
                       {"scale_dtype", "float32"},
                       {"clip_scalar", {{"key", 0.96}, {"value", 0.92}}}}},
                     {"layers", Json::array({{{"layer_id", 0}, {"head_dim", 128}, {"key", side}, {"value", side}}})}};
  return {{"schema", "oscar.set.v1"},
          {"oscar_version", "0.1.0"},
          {"model",
           {{"id", "test/tiny"},
            {"revision", ""},
            {"config_sha256", ""},
            {"num_layers", 1},
            {"num_attention_heads", 3},
            {"num_key_value_heads", 1},
            {"head_dim", 128}}},
          {"calibration", {{"data_sha256", ""}, {"tokens", 10}, {"sequences", 1}}},
          {"windows", {{"sink", 64}, {"recent", 256}}},
          {"recipe", {{"name", "oscar"}}},
          {"readers", {{"vllm", "rotations"}, {"llamacpp", "rotations"}}},
          {"parts", {{"rotations", part}}},
          {"files", files},
          {"verification", nullptr}};
}

std::map<std::string, std::string> sample_set(const std::string& seed, const std::string& verdict) {
  auto files = payload(seed);
  Json manifest = sample_manifest(seed);
  if (!verdict.empty()) {
    manifest["verification"] = {{"verdict", verdict},
                                {"readers", {{"vllm", {{"part", "rotations"}, {"verdict", verdict}}}}},
                                {"attention", {{"softmax_kl", 0.01}}},
                                {"layers", {1, 2, 3}}};
  }
  files[kManifestName] = manifest.dump(1) + "\n";
  return files;
}

void write_set(const fs::path& folder, const std::map<std::string, std::string>& files) {
  for (const auto& [path, content] : files) write_file(folder / path, content);
}

}  // namespace oscar::test
