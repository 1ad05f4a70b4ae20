// SPDX-License-Identifier: MIT
// A language model in GGUF, as llama.cpp reads it: one file, or several that were split ("NAME-00001-of-00003.gguf").
// What it says is told here in Hugging Face's terms, so that the rest of the program knows one kind of model:
// gguf_config.hpp and gguf_tokenizer.hpp make a config.json and a tokenizer.json of its metadata, and
// gguf_checkpoint.hpp shows its tensors by the names of a checkpoint. Non-goals: adapters, vision parts, writing.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "tensor/gguf.hpp"

namespace oscar {

/// Whether a model's place names a GGUF file.
[[nodiscard]] inline bool is_gguf(const std::filesystem::path& model) { return model.extension() == ".gguf"; }

class GgufModel {
 public:
  struct Place {
    const GgufFile* file = nullptr;
    const GgufTensor* tensor = nullptr;
  };

  /// Opens a file by a path or an address, which may be that of its first part. Throws DataError: a bad or missing file
  /// or part, a later part, no architecture.
  explicit GgufModel(const std::filesystem::path& path);

  [[nodiscard]] const std::string& where() const noexcept { return where_; }
  /// "llama", "qwen3moe"…: llama.cpp's name.
  [[nodiscard]] const std::string& architecture() const noexcept { return architecture_; }
  /// The metadata of the first part.
  [[nodiscard]] const GgufFile& metadata() const noexcept { return parts_.begin()->second; }
  /// The metadata value "<architecture>.<name>"; null if absent.
  [[nodiscard]] Json value(const std::string& name) const { return metadata().value(architecture_ + "." + name); }
  /// The parts by file name.
  [[nodiscard]] const std::map<std::string, GgufFile>& parts() const noexcept { return parts_; }
  /// The tensors of all parts by name.
  [[nodiscard]] const std::map<std::string, Place>& tensors() const noexcept { return tensors_; }
  /// SHA-256 of the metadata that tells the architecture: the same for all quantisations of a model.
  [[nodiscard]] std::string config_sha256() const;

 private:
  void open_parts(const std::filesystem::path& path);

  std::string where_, architecture_;
  std::map<std::string, GgufFile> parts_;
  std::map<std::string, Place> tensors_;
};

/// Returns a metadata value for messages. What is no UTF-8 in it is replaced.
[[nodiscard]] inline std::string gguf_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}
/// The file's name without its ending and the number of its part.
[[nodiscard]] std::string gguf_model_name(const std::filesystem::path& path);

}  // namespace oscar
