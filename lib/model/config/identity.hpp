// SPDX-License-Identifier: MIT
// Which model, and which text, something was made from: the provenance that dumps, statistics, rotation sets and
// reports share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace oscar {

/// What is known of a model. Empty strings and zeros mean "not known": a foreign dump does not say what model it came
/// from.
struct ModelIdentity {
  std::string id;              // "Qwen/Qwen3-8B", or the folder's name
  std::string revision;        // commit of the checkpoint, if the folder tells
  std::string config_sha256;   // config_sha256() in config.hpp; of unknown families, of config.json's bytes
  std::string weights_sha256;  // weights_sha256() in checkpoint.hpp
  int num_layers = 0;
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int head_dim = 0;
  int value_dim = 0;      // of values, if it is not head_dim; else 0
  double rope_theta = 0;  // of plain rotary embeddings over whole heads
  /// The layers that a set must cover, where they are not all: others keep no cache, or one that a window limits.
  std::vector<int> cache_layers;

  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};

/// What the moments were taken over.
struct CalibrationData {
  /// A hash that tells data apart: for our dumps of the token ids (int32, little-endian, each sequence preceded by its
  /// length, int64), for foreign ones of the files' names, sizes and directory records.
  std::string data_sha256;
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  /// The first kBlockDigits hex digits of the SHA-256 of every block of kBlockTokens token ids (int32, little-endian),
  /// joined, one string for each sequence. A last block that is shorter is left out, unless it is the only one. Empty
  /// if they are not known.
  std::vector<std::string> blocks;
  /// Of the tokens: those that stand for pieces of images or videos.
  std::int64_t image_tokens = 0;

  static constexpr std::size_t kBlockTokens = 128, kBlockDigits = 16;

  friend bool operator==(const CalibrationData&, const CalibrationData&) = default;
};

[[nodiscard]] Json to_json(const ModelIdentity& model);
[[nodiscard]] Json to_json(const CalibrationData& calibration);
[[nodiscard]] ModelIdentity model_identity_from_json(const Json& json);
[[nodiscard]] CalibrationData calibration_data_from_json(const Json& json);

}  // namespace oscar
