// SPDX-License-Identifier: MIT
#include "dump/live_states.hpp"

#include <algorithm>
#include <string>

#include "base/errors.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

constexpr int kShare = 20;  // of the time, that writing may take: one in so many

}  // namespace

LiveStates::LiveStates(fs::path folder, std::vector<int> layers, std::function<bool(int)> is_kept, Status& status)
    : folder_(std::move(folder)), layers_(std::move(layers)), is_kept_(std::move(is_kept)), status_(status) {}

void LiveStates::restore(ModelPass& pass) {
  for (int layer = layers_.empty() ? 0 : layers_.back(); layer > 0; --layer) {
    if (!fs::exists(file_of(layer)) || !counts(layer)) continue;
    try {
      pass.restore(file_of(layer));
    } catch (const DataError& error) {
      status_.notice("the model runs again from its first layer: " + std::string(error.what()));
      return;
    }
    newest_ = layer;
    status_.notice("the model goes on at layer " + std::to_string(layer) + ", with hidden states that were kept");
    return;
  }
}

void LiveStates::offer(const ModelPass& pass) {
  const int layer = pass.layer();
  const auto begin = std::chrono::steady_clock::now();
  if (failed_ || layer <= newest_ || !counts(newest_) || begin < not_before_) return;
  try {
    remove_before(newest_);
    pass.save(file_of(layer));
    newest_ = layer;
    if (counts(layer)) remove_before(layer);
  } catch (const IoError& error) {
    failed_ = true;
    status_.warning(std::string("hidden states are not kept, --resume will run all layers again: ") + error.what());
  }
  const auto end = std::chrono::steady_clock::now();
  not_before_ = end + kShare * (end - begin);
}

fs::path LiveStates::file_of(int layer) const { return folder_ / ("hidden_" + std::to_string(layer) + ".safetensors"); }

bool LiveStates::counts(int layer) const {
  return std::ranges::all_of(layers_, [&](int id) { return id >= layer || is_kept_(id); });
}

void LiveStates::remove_before(int layer) const {
  std::error_code ignored;
  for (int older = 1; older < layer; ++older) fs::remove(file_of(older), ignored);
}

}  // namespace oscar
