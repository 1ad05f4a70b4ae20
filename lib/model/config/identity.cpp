// SPDX-License-Identifier: MIT
#include "model/config/identity.hpp"

namespace oscar {

Json to_json(const ModelIdentity& model) {
  Json json{{"id", model.id},
            {"revision", model.revision},
            {"config_sha256", model.config_sha256},
            {"num_layers", model.num_layers},
            {"num_attention_heads", model.num_attention_heads},
            {"num_key_value_heads", model.num_key_value_heads},
            {"head_dim", model.head_dim},
            {"rope_theta", model.rope_theta}};
  if (!model.weights_sha256.empty()) json["weights_sha256"] = model.weights_sha256;
  if (model.value_dim > 0) json["value_dim"] = model.value_dim;
  if (!model.cache_layers.empty()) json["cache_layers"] = model.cache_layers;
  return json;
}

Json to_json(const CalibrationData& calibration) {
  Json json{
      {"data_sha256", calibration.data_sha256}, {"tokens", calibration.tokens}, {"sequences", calibration.sequences}};
  if (!calibration.blocks.empty()) json["blocks"] = calibration.blocks;
  if (calibration.image_tokens > 0) json["image_tokens"] = calibration.image_tokens;
  return json;
}

ModelIdentity model_identity_from_json(const Json& json) {
  ModelIdentity model;
  model.id = json.value("id", "");
  model.revision = json.value("revision", "");
  model.config_sha256 = json.value("config_sha256", "");
  model.weights_sha256 = json.value("weights_sha256", "");
  model.num_layers = json.value("num_layers", 0);
  model.num_attention_heads = json.value("num_attention_heads", 0);
  model.num_key_value_heads = json.value("num_key_value_heads", 0);
  model.head_dim = json.value("head_dim", 0);
  model.value_dim = json.value("value_dim", 0);
  model.rope_theta = json.value("rope_theta", 0.0);
  model.cache_layers = json.value("cache_layers", std::vector<int>{});
  return model;
}

CalibrationData calibration_data_from_json(const Json& json) {
  return {json.value("data_sha256", ""), json.value("tokens", std::int64_t{0}),
          json.value("sequences", std::int64_t{0}), json.value("blocks", std::vector<std::string>{}),
          json.value("image_tokens", std::int64_t{0})};
}

}  // namespace oscar
