// SPDX-License-Identifier: MIT
// The coded cache before the judge. Does it belong to the data at hand? Its file says how far each coordinate varies on
// calibration rows (sigma). Exchanged layers, and keys and values that were swapped, show in that on any text of the
// model. On the very rows of the fit, coordinates are uncorrelated, but for those of equal levels, which were mixed.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "base/threads.hpp"
#include "measure/kv_method.hpp"
#include "model/run/runner.hpp"
#include "verify/structure/objective.hpp"
#include "verify/structure/subject.hpp"
#include "verify/verdict/verdict.hpp"

namespace oscar::verify {
namespace {

struct CodedTarget {
  const char* name;
  CodedSide CodedLayer::*side;
  MatrixStack CodedMoments::*moments;
};
constexpr CodedTarget kKey{"key", &CodedLayer::key, &CodedMoments::key};
constexpr CodedTarget kValue{"value", &CodedLayer::value, &CodedMoments::value};

/// Empty: not known.
std::span<const double> mean_of(const CodedMoments& data, const CodedTarget& target) {
  return target.side == kKey.side ? std::span<const double>(data.key_mean) : std::span<const double>();
}

bool same_shape(const CodedSide& side, const MatrixStack& moments) {
  const MatrixStack& write = side.transform.rotation;
  return write.dim == moments.dim && write.count == moments.count;
}

/// <x - mean, w>^2 on average over the rows x, for column c of W. own: the mean of x; empty: nothing is subtracted.
double mean_square(const Transform& t, int head, std::size_t c, std::span<const double> moments,
                   std::span<const double> own) {
  const auto dim = static_cast<std::size_t>(t.rotation.dim);
  const std::span<const double> write = t.rotation[head];
  double square = 0, of_set = 0, of_data = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    double row = 0;
    for (std::size_t j = 0; j < dim; ++j) row += moments[i * dim + j] * write[j * dim + c];
    square += write[i * dim + c] * row;
    if (t.mean.empty() || own.empty()) continue;
    of_set += t.mean[static_cast<std::size_t>(head) * dim + i] * write[i * dim + c];
    of_data += own[static_cast<std::size_t>(head) * dim + i] * write[i * dim + c];
  }
  return square - 2 * of_data * of_set + of_set * of_set;
}

/// By how many octaves coordinates vary otherwise than the set says: the root mean square over the channels of a head,
/// weighed by how far the set says that they vary, of the head where it is largest. nullopt: another shape. Of a
/// layer's matrices of side `target`, on rows of side `rows`.
std::optional<double> scale_error(const CodedLayer& layer, const CodedTarget& target, const CodedMoments& data,
                                  const CodedTarget& rows) {
  const CodedSide& side = layer.*target.side;
  const MatrixStack& moments = data.*rows.moments;
  if (!same_shape(side, moments)) return std::nullopt;
  double worst = 0;
  for (int head = 0; head < moments.count; ++head) {
    const CodedFormat& format = side.formats[static_cast<std::size_t>(head)];
    double sum = 0, weights = 0;
    for (std::size_t c = 0; c < format.levels.size() && format.levels[c] > 1; ++c) {
      const double square = mean_square(side.transform, head, c, moments[head], mean_of(data, rows));
      const double octaves = std::log2(std::sqrt(std::max(square, 1e-60)) / format.sigma[c]);
      sum += format.sigma[c] * octaves * octaves, weights += format.sigma[c];
    }
    if (weights > 0) worst = std::max(worst, std::sqrt(sum / weights));
  }
  return worst;
}

/// What explains the rows of `own` clearly better than the matrix that is there for them does; "" if nothing does. It
/// has to fit in with the rows that it is there for: those of a set that was fitted on few tokens can fit others better
/// than its own and all the same be where they belong.
std::string better_matrix(const CodedPart& part, const CodedLayer& layer, const std::vector<CodedMoments>& data,
                          const CodedMoments& own, const CodedTarget& target) {
  double least = *scale_error(layer, target, own, target);
  const double error = least;
  std::string name;
  for (const CodedMoments& home : data) {
    const bool same = home.layer_id == own.layer_id;
    const CodedTarget& side = !same ? target : target.side == kKey.side ? kValue : kKey;
    const auto other = std::ranges::find(part.layers, home.layer_id, &CodedLayer::layer_id);
    if (other == part.layers.end()) continue;
    const auto here = scale_error(*other, side, own, target), there = scale_error(*other, side, home, side);
    const auto exchanged = scale_error(layer, target, home, side);
    if (!here || !there || !exchanged || *here * kClearlyBetter >= least) continue;
    if (error * *there < kClearlyBetter * *here * *exchanged) continue;
    least = *here * kClearlyBetter;
    name = same ? "of the other side: keys and values are swapped" : "of layer " + std::to_string(home.layer_id);
  }
  return name.empty() ? name : "it is the matrix " + name;
}

void check_scales(const CodedPart& part, const CodedLayer& layer, const std::vector<CodedMoments>& data,
                  const CodedMoments& own, std::vector<Check>& checks) {
  for (const CodedTarget& target : {kKey, kValue}) {
    const auto error = scale_error(layer, target, own, target);
    if (!error) continue;  // the shape check says so
    std::string message = *error > kScaleDoubt ? better_matrix(part, layer, data, own, target) : "";
    std::optional<bool> ok = message.empty() && *error <= kScaleLimit;
    if (!*ok && message.empty()) message = "it does not belong to this layer, side, model or data";
    const int dim = (layer.*target.side).transform.rotation.dim;
    if (!*ok && own.tokens < std::int64_t{kMinTokensPerDim} * dim) {
      ok = std::nullopt;
      message = "too few tokens to tell: give at least " + std::to_string(kMinTokensPerDim * dim);
    }
    checks.push_back({"scales_on_data", layer.layer_id, target.name, *error, kScaleLimit, ok, message});
  }
}

/// W of one head before coordinates of equal levels were mixed, (d, d): its columns are turned back by Hadamard
/// matrices.
Matrix unmixed(std::span<const double> write, const CodedFormat& format) {
  const std::size_t dim = format.levels.size();
  Matrix turn(dim * dim);
  for (std::size_t begin = 0, end = 0; begin < dim; begin = end) {
    while (end < dim && format.levels[end] == format.levels[begin]) ++end;
    for (std::size_t first = begin, n = 0; first < end; first += n) {
      n = format.levels[begin] > 1 ? std::bit_floor(end - first) : 1;  // channels without bits are not mixed
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          turn[(first + i) * dim + first + j] =
              std::sqrt(1.0 / static_cast<double>(n)) * (std::popcount(i & j) % 2 == 0 ? 1 : -1);
        }
      }
    }
  }
  return multiply(write, turn, dim);
}

/// What of W^T B W is not on its diagonal, over what is there, of the head where it is largest.
double covariance_error(const CodedSide& side, const MatrixStack& covariance) {
  const auto dim = static_cast<std::size_t>(covariance.dim);
  double worst = 0;
  for (int head = 0; head < covariance.count; ++head) {
    const Matrix write = unmixed(side.transform.rotation[head], side.formats[static_cast<std::size_t>(head)]);
    const Matrix found = multiply_transposed(write, multiply(covariance[head], write, dim), dim);
    double beside = 0, diagonal = 0;
    for (std::size_t i = 0; i < found.size(); ++i) (i % (dim + 1) == 0 ? diagonal : beside) += found[i] * found[i];
    worst = std::max(worst, diagonal > 0 ? std::sqrt(beside / diagonal) : std::numeric_limits<double>::infinity());
  }
  return worst;
}

void check_covariances(const CodedLayer& layer, const CodedMoments& data, std::vector<Check>& checks) {
  for (const CodedTarget& target : {kKey, kValue}) {
    const MatrixStack& covariance = target.side == kKey.side ? data.key_covariance : data.value_covariance;
    if (covariance.data.empty() || !same_shape(layer.*target.side, covariance)) continue;
    checks.push_back(at_most(kSameTokensLimit, covariance_error(layer.*target.side, covariance),
                             "decomposition_on_data", layer.layer_id, target.name,
                             "coordinates that were not mixed covary"));
  }
}

}  // namespace

void check_coded_on_data(const CodedPart& part, const std::vector<CodedMoments>& data, std::vector<Check>& checks) {
  std::vector<std::vector<Check>> found(data.size());
  parallel_for(data.size(), [&](std::size_t i) {
    const auto layer = std::ranges::find(part.layers, data[i].layer_id, &CodedLayer::layer_id);
    if (layer == part.layers.end()) return;
    check_scales(part, *layer, data, data[i], found[i]);
    check_covariances(*layer, data[i], found[i]);
  });
  for (const std::vector<Check>& own : found) checks.insert(checks.end(), own.begin(), own.end());
}

namespace {

constexpr std::size_t kMostBits = 8;
constexpr double kRotaryLimit = 1e-6;  // of frequencies, which are float32

/// The largest relative difference of two frequencies; infinite if other channels are pairs.
double rotary_error(const Rotary& stated, const std::optional<Rotary>& own) {
  if (!own || own->pairs != stated.pairs || own->near_context != stated.near_context ||
      own->far_frequency.size() != stated.far_frequency.size()) {
    return HUGE_VAL;
  }
  double worst = 0;
  for (const auto member : {&Rotary::frequency, &Rotary::far_frequency}) {
    for (std::size_t i = 0; i < (stated.*member).size(); ++i) {
      const double found = (stated.*member)[i], expected = ((*own).*member)[i];
      worst = std::max(worst, found == expected ? 0 : std::abs(found - expected) / std::abs(expected));
    }
  }
  return worst;
}

std::vector<int> channels_by_bits(const CodedFormat& format) {
  std::vector<int> channels(kMostBits + 1);
  for (const int levels : format.levels) ++channels.at(std::bit_width(static_cast<unsigned>(levels)) - 1);
  return channels;
}

struct CodedSubject final : Subject {
  CodedPart part;

  explicit CodedSubject(CodedPart taken) : part(std::move(taken)) { name = kCodedName; }

  [[nodiscard]] std::vector<StoredSide> sides() const override {
    std::vector<StoredSide> all;
    for (const CodedTarget& target : {kKey, kValue}) {
      for (const CodedLayer& layer : part.layers) {
        all.push_back({layer.layer_id, target.name, (layer.*target.side).transform, {}});
      }
    }
    return all;
  }
  [[nodiscard]] bool may_share_matrices() const override { return false; }
  [[nodiscard]] bool stores_read_sides() const override { return false; }
  [[nodiscard]] bool made_of_data() const override { return true; }

  void describe(PartReport& report, VerifyReport& whole) const override {
    report.bits = bits_of(part);
    report.default_limits = coded_thresholds(report.bits);
    report.facts = {{"layers", part.layers.size()}, {"recipe", "coded"}, {"scope", part.scope}};
    for (const CodedLayer& layer : part.layers) {
      for (const CodedTarget& target : {kKey, kValue}) {
        const CodedSide& side = layer.*target.side;
        for (std::size_t head = 0; head < side.formats.size(); ++head) {
          whole.plan.push_back(
              {layer.layer_id, target.name, static_cast<int>(head), channels_by_bits(side.formats[head])});
        }
      }
    }
  }

  void check_model(const ModelConfig& config, std::vector<Check>& checks) const override {
    for (const CodedLayer& layer : part.layers) {
      if (!layer.key.rotary || layer.layer_id >= config.num_layers) continue;
      const MixerSpec& mixer = config.block(layer.layer_id).mixer;
      const bool regular = why_not_before_rope(mixer).empty();
      const double error = rotary_error(*layer.key.rotary, regular ? rotary_of(mixer) : std::nullopt);
      checks.push_back(
          at_most(kRotaryLimit, error, "rotary", layer.layer_id, kKey.name, "the model turns keys otherwise"));
    }
  }

  [[nodiscard]] std::optional<KvMethod> method(Windows windows) const override { return method_of(part, windows); }

  void take(int layer, LayerStream& stream, bool same_tokens, std::int64_t /*tokens*/, Backend& backend,
            DataMoments& found) const override {
    found.coded.push_back(coded_moments_of(layer, stream, part, same_tokens, backend));
  }
  void take(const Statistics& statistics, DataMoments& found, std::vector<Check>& checks) const override {
    found.add({{}, coded_moments_of(statistics, part, checks)});
  }
  void check_on(const DataMoments& data, std::vector<Check>& checks) const override {
    check_coded_on_data(part, data.coded, checks);
  }
};

}  // namespace

std::unique_ptr<Subject> make_subject(CodedPart part) { return std::make_unique<CodedSubject>(std::move(part)); }

}  // namespace oscar::verify
