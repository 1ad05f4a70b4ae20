// SPDX-License-Identifier: MIT
#include "model/run/decoder.hpp"

#include "base/torch_plugin.hpp"

namespace oscar {

std::unique_ptr<Decoder> make_decoder(const ModelConfig& config, const WeightStore& weights,
                                      const DecoderOptions& options) {
  using Factory = Decoder* (*)(const ModelConfig&, const WeightStore&, const DecoderOptions&);
  static const auto factory = reinterpret_cast<Factory>(torch_plugin_symbol("model_decoder", "oscar_make_decoder"));
  return std::unique_ptr<Decoder>(factory(config, weights, options));
}

}  // namespace oscar
