// SPDX-License-Identifier: MIT
#include "sample_set.hpp"

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "zoo/index.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar::test {
namespace {

std::map<std::string, std::string> payload(const std::string& seed) {
  return {{"k_rotation_qqt_r_h_pbr.pt", std::string(5000, 'k') + seed},
          {"tables/clip.json", "{}\n"},
          {"v_rotation_sst_r_h_pbr.pt", seed + std::string(3000, 'v')}};
}

class FakeTransport : public SerialTransport {
 public:
  explicit FakeTransport(FakeZoo& zoo) : zoo_(zoo) {}

  [[nodiscard]] std::string where(const std::string& path) const override { return "fake:" + path; }

 protected:
  void get(const std::string& path, std::uint64_t, const Sink& sink) override {
    zoo_.asked.push_back(path);
    zoo_.before(path);
    const auto found = zoo_.files.find(path);
    if (found == zoo_.files.end()) throw NotFound("the server answered HTTP 404", path, "");
    // In small pieces, so that limits are met in the middle of a file.
    const auto bytes = std::as_bytes(std::span(found->second.data(), found->second.size()));
    for (std::size_t i = 0; i < bytes.size(); i += 1000)
      sink(bytes.subspan(i, std::min<std::size_t>(1000, bytes.size() - i)));
  }

 private:
  FakeZoo& zoo_;
};

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

std::map<std::string, std::string> read_folder(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::path& path : list_files(folder)) files[path.string()] = read_text(folder / path);
  return files;
}

void FakeZoo::add(const std::string& model, const std::string& tag, const std::map<std::string, std::string>& set) {
  const SetManifest manifest = parse_set_manifest(set.at(kManifestName), "test");
  const std::string path = model + "/" + tag;
  ZooIndex index = files.contains(kIndexName) ? ZooIndex(files[kIndexName], "test") : ZooIndex();
  index.put({model, tag, path, manifest.sha256, manifest.text.size(), manifest.total_size, Json::object(),
             "2026-01-02T03:04:05Z", false});
  files[kIndexName] = index.document().dump();
  for (const auto& [name, content] : set) files[path + "/" + name] = content;
}

TransportFactory FakeZoo::factory() {
  return [this](const StoreLocation&, const TransferOptions&) { return std::make_unique<FakeTransport>(*this); };
}

}  // namespace oscar::test
