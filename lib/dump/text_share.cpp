// SPDX-License-Identifier: MIT
#include "dump/text_share.hpp"

namespace oscar {

SharedLayer::SharedLayer(const TextShare& share, int layer_id, int fitter)
    : share_(share), layer_id_(layer_id), fitter_(fitter) {}

std::string SharedLayer::next_key() {
  return "text/" + std::to_string(layer_id_) + "/" + std::to_string(calls_++) + "/";
}

std::string SharedLayer::gather(const std::string& own) {
  const std::string key = next_key();
  if (!fits()) {
    share_.put(key + std::to_string(share_.rank), own);
    return "";
  }
  std::string all;
  for (int rank = 0; rank < share_.size; ++rank) {
    all += rank == share_.rank ? own : share_.take(key + std::to_string(rank));
  }
  return all;
}

std::string SharedLayer::spread(const std::string& value) {
  const std::string key = next_key();
  if (!fits()) return share_.take(key + std::to_string(share_.rank));
  for (int rank = 0; rank < share_.size; ++rank) {
    if (rank != share_.rank) share_.put(key + std::to_string(rank), value);
  }
  return value;
}

}  // namespace oscar
