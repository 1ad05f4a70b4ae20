// SPDX-License-Identifier: MIT
#include "fit/coded_data_merge.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "fit/kept_layers.hpp"

namespace oscar {
namespace {

void require_alike(const CodedPart& a, const CodedPart& b) {
  const auto require = [&](bool alike, const std::string& what, const char* advice) {
    if (!alike) throw DataError(what, a.name + " and " + b.name, advice);
  };
  const CodedData &x = a.data, &y = b.data;
  require(x.model == y.model, "statistics of different models, or revisions of one",
          "merge statistics of one model only");
  require(x.windows == y.windows, "statistics with different windows", "take them with the same --sink and --recent");
  Json how = x.recipe, other = y.recipe;
  for (Json* each : {&how, &other}) each->erase("damage_tokens");
  require(how == other,
          "statistics that were taken in other ways: " + PartialFolder::differences(how, other) + " differ",
          "take all parts with the same options, and all of a model or all of dumps");
  for (const CalibrationData& each : x.data) {
    require(std::ranges::find(y.data, each) == y.data.end(), "the same data twice", "give each part of the data once");
  }
  const auto same_layer = [](const CodedLayerData& one, const CodedLayerData& two) {
    return one.sums.layer_id == two.sums.layer_id && one.sums.key_dim == two.sums.key_dim &&
           one.sums.value_dim == two.sums.value_dim && one.key_rows.size() == two.key_rows.size() &&
           one.centred == two.centred && one.cost.has_value() == two.cost.has_value() &&
           one.damage.has_value() == two.damage.has_value();
  };
  require(std::ranges::equal(x.layers, y.layers, same_layer), "statistics of different layers, or of other heads",
          "take every part of the same layers");
}

/// One layer of every part, in order.
using LayerOfParts = std::vector<CodedLayerData*>;

double tokens_of_all(const LayerOfParts& parts) {
  double tokens = 0;
  for (const CodedLayerData* part : parts) tokens += static_cast<double>(tokens_of(*part));
  return tokens;
}

std::int64_t rows_of(const CodedLayerData& part) {
  return std::ssize(part.key_rows.front()) / std::int64_t{part.sums.key_dim};
}

/// `count` of the rows of each head, spread evenly.
void thin(std::vector<std::vector<float>>& heads, std::int64_t rows, std::int64_t count) {
  for (std::vector<float>& own : heads) {
    const auto dim = std::ssize(own) / rows;
    std::vector<float> kept;
    kept.reserve(static_cast<std::size_t>(count * dim));
    for (std::int64_t i = 0; i < count; ++i) {
      const auto row = own.begin() + (2 * i + 1) * rows / (2 * count) * dim;
      kept.insert(kept.end(), row, row + dim);
    }
    own = std::move(kept);
  }
}

void append(const std::vector<std::vector<float>>& more, std::vector<std::vector<float>>& heads) {
  for (std::size_t head = 0; head < heads.size(); ++head) {
    heads[head].insert(heads[head].end(), more[head].begin(), more[head].end());
  }
}

/// Leaves of each part's rows as many as its tokens deserve: about `wanted` in all, or what the part with the fewest
/// rows a token allows.
void thin_rows(const LayerOfParts& parts, double wanted) {
  double density = wanted / tokens_of_all(parts);
  for (const CodedLayerData* part : parts) {
    density = std::min(density, static_cast<double>(rows_of(*part)) / static_cast<double>(tokens_of(*part)));
  }
  for (CodedLayerData* part : parts) {
    const std::int64_t rows = rows_of(*part);
    const auto share = static_cast<std::int64_t>(std::llround(density * static_cast<double>(tokens_of(*part))));
    const std::int64_t count = std::clamp<std::int64_t>(share, 1, rows);
    thin(part->key_rows, rows, count);
    thin(part->value_rows, rows, count);
  }
}

void scale_by(double share, CodedLayerData& layer) {
  if (layer.cost) {
    for (MatrixStack* cost : {&layer.cost->key, &layer.cost->value}) {
      for (double& entry : cost->data) entry *= share;
    }
  }
  if (layer.damage) layer.damage = {share * layer.damage->key, share * layer.damage->value};
}

void add_to(std::vector<double>& sum, const std::vector<double>& more) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

/// To the first part's.
void merge_layer(const LayerOfParts& parts, double wanted_rows) {
  const double all = tokens_of_all(parts);
  thin_rows(parts, wanted_rows);
  for (CodedLayerData* part : parts) scale_by(static_cast<double>(tokens_of(*part)) / all, *part);
  CodedLayerData& sum = *parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const CodedLayerData& more = *parts[i];
    sum.sums.first.merge(more.sums.first);
    append(more.key_rows, sum.key_rows);
    append(more.value_rows, sum.value_rows);
    if (sum.cost) add_to(sum.cost->key.data, more.cost->key.data), add_to(sum.cost->value.data, more.cost->value.data);
    if (sum.damage) sum.damage = {sum.damage->key + more.damage->key, sum.damage->value + more.damage->value};
  }
}

}  // namespace

CodedData merge_coded_data(std::vector<CodedPart> parts) {
  const auto order = [](const CodedPart& part) {
    std::string text;
    for (const CalibrationData& each : part.data.data) text += each.data_sha256;
    return text;
  };
  std::ranges::stable_sort(parts, {}, order);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) require_alike(parts[j], parts[i]);
  }
  CodedData& sum = parts.front().data;
  if (parts.size() == 1) return std::move(sum);
  for (std::size_t layer = 0; layer < sum.layers.size(); ++layer) {
    LayerOfParts same;
    for (CodedPart& part : parts) same.push_back(&part.data.layers[layer]);
    merge_layer(same, sum.recipe["sample_rows"]);
  }
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const CodedData& more = parts[i].data;
    sum.data.insert(sum.data.end(), more.data.begin(), more.data.end());
    sum.recipe["damage_tokens"] =
        sum.recipe["damage_tokens"].get<std::int64_t>() + more.recipe["damage_tokens"].get<std::int64_t>();
  }
  for (CodedLayerData& layer : sum.layers) {
    layer.sums.first_data.resize(sum.data.size());
    std::iota(layer.sums.first_data.begin(), layer.sums.first_data.end(), std::size_t{0});
  }
  return std::move(sum);
}

}  // namespace oscar
