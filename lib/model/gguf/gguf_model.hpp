// SPDX-License-Identifier: MIT
// A language model in GGUF, as llama.cpp reads it: one file, or several that were split ("NAME-00001-of-00003.gguf").
// What it says is told here in Hugging Face's terms, so that the rest of the program knows one kind of model:
// its metadata as a config.json and a tokenizer.json, its tensors by the names of a checkpoint (weights/
// gguf_checkpoint.cpp). The metadata follows ggml's specification of GGUF; what a converter leaves out, such as the
// scale of Gemma's queries, follows what llama.cpp computes with. Non-goals: adapters, vision parts, writing.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "tensor/gguf.hpp"

namespace oscar {

/// Beyond any model, in whatever file: what is kept of each layer has to fit into memory.
inline constexpr int kMostModelLayers = 4096;

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
  /// The metadata value "<architecture>.<name>"; null if absent. Of a list with the same for every layer, that.
  [[nodiscard]] Json value(const std::string& name) const;
  /// The parts by file name.
  [[nodiscard]] const std::map<std::string, GgufFile>& parts() const noexcept { return parts_; }
  /// The tensors of all parts by name.
  [[nodiscard]] const std::map<std::string, Place>& tensors() const noexcept { return tensors_; }

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

/// How a tensor differs from the weight that it stands for.
struct GgufWeightName {
  std::string name;       // "model.layers.0.self_attn.q_proj.weight"
  bool turned = false;    // rows of each head alternate between its two halves, as interleaved RoPE wants them
  bool plus_one = false;  // 1 was added
  bool one_row = false;   // a vector that is a matrix of one row there
};

/// Returns a config.json that says what the GGUF file does. Throws DataError: an architecture that is not supported, a
/// member that is missing or of another type.
[[nodiscard]] Json gguf_config(const GgufModel& model);
/// Returns what users should know of the file: where it says less than a model needs, or llama.cpp does not do what it
/// says.
[[nodiscard]] std::vector<std::string> gguf_notices(const GgufModel& model);
/// Returns what a tensor is called in a checkpoint; nothing for one that the configuration tells ("rope_freqs.weight")
/// or that is unknown.
[[nodiscard]] std::optional<GgufWeightName> gguf_weight_name(const GgufModel& model, const std::string& tensor);

/// The tokenizer in a GGUF file's metadata ("tokenizer.ggml.…") as the tokenizer.json of the checkpoint that the file
/// was made from. Byte-level BPE ("gpt2") is cut into words as "tokenizer.ggml.pre" says; SentencePiece's BPE ("llama")
/// merges by the scores of its pieces. Throws DataError: a file without a tokenizer, a kind of tokenizer or of words
/// that is not supported, lists that do not fit together.
[[nodiscard]] Json gguf_tokenizer(const std::filesystem::path& path);

}  // namespace oscar
