// SPDX-License-Identifier: MIT
#include "coded/coded_set.hpp"

#include "kernels/reference/coded_row.hpp"

namespace oscar {
namespace {

KvSide kv_side(const CodedSide& side) {
  KvSide kv;
  kv.transform = std::make_shared<const Transform>(side.transform);
  kv.codec.coded = std::make_shared<const std::vector<CodedFormat>>(side.formats);
  return kv;
}

}  // namespace

double bits_of(const CodedSide& side) {
  double bytes = 0;
  for (const CodedFormat& format : side.formats) bytes += static_cast<double>(reference::coded_row_bytes(format));
  return 8 * bytes / static_cast<double>(side.lambda.size());
}

double bits_of(const CodedSet& set) {
  double bits = 0, channels = 0;
  for (const CodedLayer& layer : set.layers) {
    for (const CodedSide* side : {&layer.key, &layer.value}) {
      const auto width = static_cast<double>(side->lambda.size());
      bits += width * bits_of(*side);
      channels += width;
    }
  }
  return channels > 0 ? bits / channels : 0;
}

KvMethod method_of_coded_set(const CodedSet& set, Windows windows) {
  KvMethod method{"coded", MethodKind::kThis, windows, {}};
  method.description = "the set under test";
  for (const CodedLayer& layer : set.layers) {
    method.layers[layer.layer_id] = {layer.key.transform.rotation.dim, kv_side(layer.key), kv_side(layer.value),
                                     static_cast<int>(layer.key.formats.size()), layer.value.transform.rotation.dim};
  }
  return method;
}

}  // namespace oscar
