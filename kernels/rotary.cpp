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
  Json json{{"pairs", std::move(pairs)},
            {"frequency", rotary.frequency},
            {"fast_frequency", kFastFrequency},
            {"turn_block", kTurnBlock}};
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
  if (fits && (json.value("fast_frequency", 0.0F) != kFastFrequency || json.value("turn_block", 0) != kTurnBlock)) {
    throw DataError("the file is of a version that stored other parts of keys before RoPE", where,
                    "make the file again with this version");
  }
  if (fits) return rotary;
  throw DataError("the pairs of channels that turn are not all channels once, each pair with a frequency", where,
                  "make the file again");
}

namespace {

/// Makes changed(x, pair, at, angle) of the channels x of all pairs of rows, whose heads begin at channel `at`: the
/// angle is that of the model at stands_at(pair, position).
template <class StandsAt, class Changed>
void for_pairs(const Rotary& rotary, std::span<float> rows, int heads, std::int64_t first, const StandsAt& stands_at,
               const Changed& changed) {
  const auto dim = static_cast<std::size_t>(rotary.dim()), width = dim * static_cast<std::size_t>(heads);
  const std::size_t tokens = width == 0 ? 0 : rows.size() / width;
  OSCAR_CHECK(tokens * width == rows.size() && rotary.frequency.size() * 2 == dim);
  const std::span<const float> frequencies = rotary.frequencies(first + static_cast<std::int64_t>(tokens));
  parallel_for(tokens, [&](std::size_t t) {
    for (std::size_t p = 0; p < frequencies.size(); ++p) {
      const auto position = static_cast<float>(stands_at(p, first + static_cast<std::int64_t>(t)));
      const double angle = position * frequencies[p];
      const PairValues turn{static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
      for (std::size_t at = 0; at < width; at += dim) {
        float& x = rows[t * width + at + static_cast<std::size_t>(rotary.pairs[2 * p])];
        float& y = rows[t * width + at + static_cast<std::size_t>(rotary.pairs[2 * p + 1])];
        const PairValues out = changed(PairValues{x, y}, p, at, turn);
        x = out.first, y = out.second;
      }
    }
  });
}

}  // namespace

void turn(const Rotary& rotary, Turn direction, std::span<float> rows, int heads, std::int64_t first) {
  const float sign = direction == Turn::kForth ? 1 : -1;
  for_pairs(
      rotary, rows, heads, first, [](std::size_t, std::int64_t position) { return position; },
      [&](PairValues x, std::size_t, std::size_t, PairValues angle) {
        return turned_by({angle.first, sign * angle.second}, x.first, x.second);
      });
}

void turn_stored(const Rotary& rotary, Turn direction, std::span<const double> means, std::span<float> rows, int heads,
                 std::int64_t first) {
  OSCAR_CHECK(std::ssize(means) == std::int64_t{heads} * rotary.dim());
  const float sign = direction == Turn::kForth ? 1 : -1;
  for_pairs(
      rotary, rows, heads, first,
      [&](std::size_t p, std::int64_t position) { return rotary.is_fast(p) ? position : turn_anchor(position); },
      [&](PairValues x, std::size_t p, std::size_t at, PairValues angle) {
        const auto mean_of = [&](std::size_t i) {
          return static_cast<float>(means[at + static_cast<std::size_t>(rotary.pairs[2 * p + i])]);
        };
        PairValues mean{mean_of(0), mean_of(1)};
        if (rotary.is_fast(p)) {
          mean = turned_by(angle, mean.first, mean.second);
        } else if (direction == Turn::kBack) {
          x = turned_by({angle.first, -angle.second}, x.first, x.second);
        }
        x = {x.first + sign * mean.first, x.second + sign * mean.second};
        return rotary.is_fast(p) || direction == Turn::kBack ? x : turned_by(angle, x.first, x.second);
      });
}

}  // namespace oscar
