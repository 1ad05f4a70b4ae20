// SPDX-License-Identifier: MIT
#include "zoo/set_summary.hpp"

#include <cmath>

#include "coded/coded_set.hpp"

namespace oscar {
namespace {

/// The figures of `verification` without its per-layer lists.
Json without_lists(const Json& value) {
  if (!value.is_object()) return value;
  Json kept = Json::object();
  for (const auto& [key, member] : value.items()) {
    if (!member.is_array()) kept[key] = without_lists(member);
  }
  return kept;
}

/// Bits of one code; of a coded set, of one stored value with its share of the scales.
double bits_of_side(const Json& manifest, std::size_t side) {
  if (manifest.at("schema") != kCodedSchema) return std::log2(manifest.at("codec").at("levels").at(side).get<double>());
  double bits = 0;
  for (const Json& layer : manifest.at("layers"))
    bits += layer.at(side == 0 ? "key" : "value").at("bits").get<double>();
  return bits / static_cast<double>(manifest.at("layers").size());
}

}  // namespace

Json summary_of_set(const Json& manifest) {
  const auto bits = [&](std::size_t side) { return std::round(bits_of_side(manifest, side) * 100) / 100; };
  return {{"model", manifest.at("model").at("id")},
          {"recipe", manifest.at("recipe").at("name")},
          {"codec", manifest.at("codec").at("name")},
          {"bits", {{"key", bits(0)}, {"value", bits(1)}}},
          {"num_layers", manifest.at("layers").size()},
          {"verification", without_lists(manifest.value("verification", Json()))}};
}

}  // namespace oscar
