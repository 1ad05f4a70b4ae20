// SPDX-License-Identifier: MIT
#include "kernels/rotary.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/threads.hpp"

namespace oscar {

std::vector<int> rotary_pairs(int dim, int turning, bool interleaved) {
  OSCAR_CHECK(dim % 2 == 0 && turning % 2 == 0 && turning <= dim);
  std::vector<int> pairs;
  for (int i = 0; i < turning / 2; ++i) {
    pairs.insert(pairs.end(), {interleaved ? 2 * i : i, interleaved ? 2 * i + 1 : i + turning / 2});
  }
  for (int i = turning; i < dim; ++i) pairs.push_back(i);
  return pairs;
}

Rotary plain_rotary(double theta, int dim) {
  Rotary rotary{.pairs = rotary_pairs(dim, dim, false), .frequency = {}, .far_frequency = {}};
  for (int i = 0; i < dim; i += 2) rotary.frequency.push_back(1 / static_cast<float>(std::pow(theta, 1.0 * i / dim)));
  return rotary;
}

Json to_json(const Rotary& rotary) {
  Json pairs = Json::array();
  for (std::size_t i = 0; i < rotary.pairs.size(); i += 2) pairs.push_back({rotary.pairs[i], rotary.pairs[i + 1]});
  Json json{{"pairs", std::move(pairs)}, {"frequency", rotary.frequency}, {"fast_frequency", kFastFrequency}};
  if (rotary.near_context > 0) {
    json["far_frequency"] = rotary.far_frequency, json["near_context"] = rotary.near_context;
  }
  return json;
}

Rotary rotary_from_json(const Json& json, const std::string& where) {
  Rotary rotary{.pairs = {}, .frequency = json.at("frequency"), .far_frequency = {}};
  for (const Json& pair : json.at("pairs")) rotary.pairs.insert(rotary.pairs.end(), {pair.at(0), pair.at(1)});
  if (json.contains("near_context") && json.contains("far_frequency")) {
    rotary.far_frequency = json.at("far_frequency").get<std::vector<float>>();
    rotary.near_context = json.at("near_context");
  }
  std::vector<int> channels = rotary.pairs;
  std::ranges::sort(channels);
  bool fits = rotary.frequency.size() * 2 == channels.size() &&
              json.contains("near_context") == json.contains("far_frequency") &&
              (rotary.near_context == 0 || rotary.far_frequency.size() == rotary.frequency.size());
  for (std::size_t i = 0; i < channels.size(); ++i) fits = fits && channels[i] == static_cast<int>(i);
  for (const auto* frequencies : {&rotary.frequency, &rotary.far_frequency}) {
    fits = fits && std::ranges::all_of(*frequencies, [](float f) { return std::isfinite(f); });
  }
  if (fits && json.value("fast_frequency", 0.0F) != kFastFrequency) {
    throw DataError("the file is of a version that coded other pairs of channels as they stand", where,
                    "make the file again with this version");
  }
  if (fits) return rotary;
  throw DataError("the pairs of channels that turn are not all channels once, each pair with a frequency", where,
                  "make the file again");
}

namespace {

/// means: (heads, d) of what is not turned with the rows, or nothing.
void turn_pairs(const Rotary& rotary, Turn direction, bool only_fast, std::span<const double> means,
                std::span<float> rows, int heads, std::int64_t first) {
  const auto dim = static_cast<std::size_t>(rotary.dim()), width = dim * static_cast<std::size_t>(heads);
  const std::size_t tokens = width == 0 ? 0 : rows.size() / width;
  OSCAR_CHECK(tokens * width == rows.size() && rotary.frequency.size() * 2 == dim);
  const std::span<const float> frequencies = rotary.frequencies(first + static_cast<std::int64_t>(tokens));
  parallel_for(tokens, [&](std::size_t t) {
    const auto position = static_cast<float>(first + static_cast<std::int64_t>(t));
    for (std::size_t p = 0; p < frequencies.size(); ++p) {
      if (only_fast && !rotary.is_fast(p)) continue;
      const double angle = position * frequencies[p];
      const auto cosine = static_cast<float>(std::cos(angle));
      const auto sine = static_cast<float>(direction == Turn::kForth ? std::sin(angle) : -std::sin(angle));
      const auto i = static_cast<std::size_t>(rotary.pairs[2 * p]),
                 j = static_cast<std::size_t>(rotary.pairs[2 * p + 1]);
      for (std::size_t at = 0; at < width; at += dim) {
        const auto mean = [&](std::size_t channel) {
          return means.empty() ? 0.0F : static_cast<float>(means[at + channel]);
        };
        float &x = rows[t * width + at + i], &y = rows[t * width + at + j];
        const float from_x = x - mean(i), from_y = y - mean(j);
        x = from_x * cosine - from_y * sine + mean(i);
        y = from_x * sine + from_y * cosine + mean(j);
      }
    }
  });
}

}  // namespace

void turn(const Rotary& rotary, Turn direction, std::span<float> rows, int heads, std::int64_t first) {
  turn_pairs(rotary, direction, false, {}, rows, heads, first);
}

void turn_fast(const Rotary& rotary, Turn direction, std::span<const double> means, std::span<float> rows, int heads,
               std::int64_t first) {
  OSCAR_CHECK(std::ssize(means) == std::int64_t{heads} * rotary.dim());
  turn_pairs(rotary, direction, true, means, rows, heads, first);
}

}  // namespace oscar
