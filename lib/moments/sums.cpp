// SPDX-License-Identifier: MIT
#include "moments/sums.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <string>

#include "base/errors.hpp"

namespace oscar {
namespace {

constexpr std::array<std::string_view, 7> kNames{"fisher", "fisher_key", "keys", "ktk", "qqt", "sst", "vtv"};
static_assert(kNames.size() == static_cast<std::size_t>(Moment::kVtv) + 1);

void add_to(std::vector<double>& sums, const std::vector<double>& other) {
  OSCAR_CHECK(sums.size() == other.size());
  std::transform(sums.begin(), sums.end(), other.begin(), sums.begin(), std::plus<>());
}

}  // namespace

std::string_view name_of(Moment moment) { return kNames[static_cast<std::size_t>(moment)]; }

std::optional<Moment> find_moment(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Moment>(found - kNames.begin());
}

void MomentSums::merge(const MomentSums& other) {
  if (sums.count != other.sums.count || sums.dim != other.sums.dim) {
    throw DataError("moments of different shape cannot be merged", "", "merge statistics of the same model only");
  }
  add_to(sums.data, other.sums.data);
  add_to(total, other.total);
}

MatrixStack MomentSums::mean() const {
  MatrixStack out = sums;
  for (int h = 0; h < out.count; ++h) {
    for (double& value : out[h]) value /= std::max(total[static_cast<std::size_t>(h)], 1e-12);
  }
  return out;
}

void KeySums::merge(const KeySums& other) {
  add_to(sums, other.sums);
  tokens += other.tokens;
}

std::vector<double> KeySums::mean() const {
  std::vector<double> mean = sums;
  for (double& value : mean) value /= std::max(tokens, 1.0);
  return mean;
}

void merge(FisherSums& sums, const FisherSums& other) {
  add_to(sums.query.data, other.query.data);
  add_to(sums.key.data, other.key.data);
  add_to(sums.key_sum, other.key_sum);
  add_to(sums.weight, other.weight);
  add_to(sums.value.data, other.value.data);
  add_to(sums.base_query.data, other.base_query.data);
  add_to(sums.base_key.data, other.base_key.data);
  add_to(sums.base_key_sum, other.base_key_sum);
}

FisherMoments mean(const FisherSums& sums, Windows windows) {
  if (const auto weightless = std::ranges::find(sums.weight, 0); weightless != sums.weight.end()) {
    throw DataError(
        "the softmax feels no error in keys of the history: no sequence is longer than the windows, or "
        "each query reads one key alone",
        "KV head " + std::to_string(weightless - sums.weight.begin()),
        "calibrate on sequences of more than " + std::to_string(windows.sink + windows.recent) +
            " tokens, leave the layer out with --layers, or use --recipe oscar");
  }
  FisherMoments moments{MomentSums{sums.query, sums.weight}.mean(), MomentSums{sums.key, sums.weight}.mean(),
                        sums.key_sum};
  const auto dim = static_cast<std::size_t>(sums.key.dim);
  for (std::size_t i = 0; i < moments.key_mean.size(); ++i) moments.key_mean[i] /= sums.weight[i / dim];
  return moments;
}

void AdditiveMoments::merge(const AdditiveMoments& other) {
  for (auto& [name, moments] : sums) moments.merge(other.sums.at(name));
  if (fisher) oscar::merge(*fisher, other.fisher.value());
  if (keys) keys->merge(other.keys.value());
}

MatrixStack centred(MatrixStack moments, std::span<const double> own, std::span<const double> mean) {
  const auto d = static_cast<std::size_t>(moments.dim);
  for (std::size_t h = 0; h < static_cast<std::size_t>(moments.count); ++h) {
    const auto a = own.subspan(h * d, d), m = mean.subspan(h * d, d);
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        moments[static_cast<int>(h)][i * d + j] += m[i] * m[j] - a[i] * m[j] - m[i] * a[j];
      }
    }
  }
  return moments;
}

}  // namespace oscar
