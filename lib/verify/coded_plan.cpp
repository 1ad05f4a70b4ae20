// SPDX-License-Identifier: MIT
#include "verify/coded_plan.hpp"

#include <algorithm>
#include <bit>
#include <functional>

namespace oscar::verify {
namespace {

constexpr std::size_t kMostBits = 8;

std::vector<int> channels_by_bits(const CodedFormat& format) {
  std::vector<int> channels(kMostBits + 1);
  for (const int levels : format.levels) ++channels.at(std::bit_width(static_cast<unsigned>(levels)) - 1);
  return channels;
}

/// Empty if nothing varies in a head.
std::vector<double> mean_variances(const CodedSide& side) {
  const std::size_t heads = side.formats.size(), dim = side.lambda.size() / heads;
  std::vector<double> mean(dim);
  for (std::size_t head = 0; head < heads; ++head) {
    const auto first = side.lambda.begin() + static_cast<std::ptrdiff_t>(head * dim);
    std::vector<double> own(first, first + static_cast<std::ptrdiff_t>(dim));
    std::ranges::sort(own, std::greater<>());
    if (own.front() <= 0) return {};
    for (std::size_t i = 0; i < dim; ++i) mean[i] += own[i] / own.front() / static_cast<double>(heads);
  }
  return mean;
}

}  // namespace

std::vector<HeadPlan> plan_of(const CodedSet& set) {
  std::vector<HeadPlan> plan;
  for (const CodedLayer& layer : set.layers) {
    for (const auto& [target, side] : {std::pair("key", &layer.key), std::pair("value", &layer.value)}) {
      for (std::size_t head = 0; head < side->formats.size(); ++head) {
        plan.push_back({layer.layer_id, target, static_cast<int>(head), channels_by_bits(side->formats[head])});
      }
    }
  }
  return plan;
}

std::vector<Spectra> spectra_of(const CodedSet& set) {
  std::vector<Spectra> all;
  for (const CodedLayer& layer : set.layers) {
    for (const auto& [target, side] : {std::pair("key", &layer.key), std::pair("value", &layer.value)}) {
      std::vector<double> values = mean_variances(*side);
      if (!values.empty()) all.push_back({layer.layer_id, target, std::move(values)});
    }
  }
  return all;
}

}  // namespace oscar::verify
