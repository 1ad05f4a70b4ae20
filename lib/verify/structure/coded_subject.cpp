// SPDX-License-Identifier: MIT
// A set of the coded cache before the judge. Does it belong to the data at hand? Its files say how far each coordinate
// varies on calibration rows (sigma), and of what variances coordinates of equal levels were mixed (lambda). Exchanged
// layers, and keys and values that were swapped, show in the first on any text of the model.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <optional>

#include "base/errors.hpp"
#include "measure/set_method.hpp"
#include "set/coded_part.hpp"
#include "verify/structure/checks.hpp"
#include "verify/structure/data_covariance.hpp"
#include "verify/structure/matrix.hpp"
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
/// of the head where it is largest. nullopt: another shape.
std::optional<double> scale_error(const CodedSide& side, const MatrixStack& moments, std::span<const double> own_mean) {
  if (!same_shape(side, moments)) return std::nullopt;
  double worst = 0;
  for (int head = 0; head < moments.count; ++head) {
    const CodedFormat& format = side.formats[static_cast<std::size_t>(head)];
    double sum = 0, channels = 0;
    for (std::size_t c = 0; c < format.levels.size() && format.levels[c] > 1; ++c, ++channels) {
      const double square = mean_square(side.transform, head, c, moments[head], own_mean);
      const double octaves = std::log2(std::sqrt(std::max(square, 1e-60)) / format.sigma[c]);
      sum += octaves * octaves;
    }
    if (channels > 0) worst = std::max(worst, std::sqrt(sum / channels));
  }
  return worst;
}

/// What explains the rows of one layer and side better than the matrix that is there for them; "" if nothing does.
std::string better_matrix(const CodedPart& set, const CodedMoments& data, const CodedTarget& target, double error) {
  std::string name;
  const auto consider = [&](const CodedSide& side, const std::string& what) {
    const auto other = scale_error(side, data.*target.moments, mean_of(data, target));
    if (!other || *other * kClearlyBetter >= error) return;
    error = *other * kClearlyBetter;
    name = "it is the matrix " + what;
  };
  for (const CodedLayer& layer : set.layers) {
    if (layer.layer_id != data.layer_id) {
      consider(layer.*target.side, "of layer " + std::to_string(layer.layer_id));
    } else {
      consider(target.side == kKey.side ? layer.value : layer.key, "of the other side: keys and values are swapped");
    }
  }
  return name;
}

void check_scales(const CodedPart& set, const CodedLayer& layer, const CodedMoments& data, const CodedTarget& target,
                  std::vector<Check>& checks) {
  const auto error = scale_error(layer.*target.side, data.*target.moments, mean_of(data, target));
  if (!error) return;  // the shape check says so
  std::string message = *error > kScaleDoubt ? better_matrix(set, data, target, *error) : "";
  std::optional<bool> ok = message.empty() && *error <= kScaleLimit;
  if (!*ok && message.empty()) message = "it does not belong to this layer, side, model or data";
  const int dim = (layer.*target.side).transform.rotation.dim;
  if (!*ok && data.tokens < std::int64_t{kMinTokensPerDim} * dim) {
    ok = std::nullopt;
    message = "too few tokens to tell: give at least " + std::to_string(kMinTokensPerDim * dim);
  }
  checks.push_back({"scales_on_data", layer.layer_id, target.name, *error, kScaleLimit, ok, message});
}

/// The covariance of stored coordinates that the set states, (d, d): of those that were mixed, H diag(lambda) H.
Matrix stated_covariance(const CodedFormat& format, std::span<const double> lambda) {
  const std::size_t dim = lambda.size();
  Matrix stated(dim * dim);
  for (std::size_t begin = 0, end = 0; begin < dim; begin = end) {
    while (end < dim && format.levels[end] == format.levels[begin]) ++end;
    for (std::size_t first = begin, n = 0; first < end; first += n) {
      n = format.levels[begin] > 1 ? std::bit_floor(end - first) : 1;  // channels without bits are not mixed
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          double sum = 0;
          for (std::size_t k = 0; k < n; ++k) {
            sum += std::popcount(k & (i ^ j)) % 2 == 0 ? lambda[first + k] : -lambda[first + k];
          }
          stated[(first + i) * dim + first + j] = sum / static_cast<double>(n);
        }
      }
    }
  }
  return stated;
}

/// |W^T B W - stated| / |lambda|, of the head where it is largest.
double covariance_error(const CodedSide& side, const MatrixStack& covariance) {
  const auto dim = static_cast<std::size_t>(covariance.dim);
  double worst = 0;
  for (int head = 0; head < covariance.count; ++head) {
    const auto lambda = std::span(side.lambda).subspan(static_cast<std::size_t>(head) * dim, dim);
    const std::span<const double> write = side.transform.rotation[head];
    const Matrix found = multiply_transposed(write, multiply(covariance[head], write, dim), dim);
    const Matrix stated = stated_covariance(side.formats[static_cast<std::size_t>(head)], lambda);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < found.size(); ++i) difference += (found[i] - stated[i]) * (found[i] - stated[i]);
    for (const double value : lambda) size += value * value;
    worst = std::max(worst, std::sqrt(difference / size));
  }
  return worst;
}

void check_covariances(const CodedLayer& layer, const CodedMoments& data, std::vector<Check>& checks) {
  for (const CodedTarget& target : {kKey, kValue}) {
    const MatrixStack& covariance = target.side == kKey.side ? data.key_covariance : data.value_covariance;
    if (covariance.data.empty() || !same_shape(layer.*target.side, covariance)) continue;
    const double error = covariance_error(layer.*target.side, covariance);
    const bool ok = error <= kSameTokensLimit;
    checks.push_back({"decomposition_on_data", layer.layer_id, target.name, error, kSameTokensLimit, ok,
                      ok ? "" : "coordinates have other covariances than the set says"});
  }
}

}  // namespace

void check_coded_on_data(const CodedPart& set, const std::vector<CodedMoments>& data, std::vector<Check>& checks) {
  for (const CodedMoments& own : data) {
    for (const CodedLayer& layer : set.layers) {
      if (layer.layer_id != own.layer_id) continue;
      for (const CodedTarget& target : {kKey, kValue}) check_scales(set, layer, own, target, checks);
      check_covariances(layer, own, checks);
    }
  }
}

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

/// What the manifest says of bits is what rows take.
void check_bits(const CodedPart& set, double said, std::vector<Check>& checks) {
  constexpr double kRounding = 1e-9;
  const double taken = bits_of(set), off = std::abs(taken - said);
  checks.push_back({.name = "bits",
                    .value = off,
                    .limit = kRounding,
                    .ok = off <= kRounding,
                    .message = "rows take other bits than the manifest says"});
  checks.push_back({.name = "budget",
                    .value = taken,
                    .limit = set.bits,
                    .ok = taken <= set.bits + kRounding,
                    .message = "rows take more bits than asked"});
}

void check_layers(const CodedPart& set, const ModelIdentity& model, std::vector<Check>& checks) {
  const auto append = [](std::string& list, int layer) { list += (list.empty() ? "" : ", ") + std::to_string(layer); };
  std::vector<int> wanted = model.cache_layers;
  for (int layer = 0; wanted.empty() && layer < model.num_layers; ++layer) wanted.push_back(layer);
  std::string missing, wrong;
  for (const int layer : wanted) {
    if (std::ranges::find(set.layers, layer, &CodedLayer::layer_id) == set.layers.end()) append(missing, layer);
  }
  const int heads = model.num_key_value_heads;
  for (const CodedLayer& layer : set.layers) {
    const MatrixStack &key = layer.key.transform.rotation, &value = layer.value.transform.rotation;
    const bool fits = (model.head_dim == 0 || key.dim == model.head_dim) &&
                      (heads == 0 || (key.count == heads && value.count == heads));
    if (!fits) append(wrong, layer.layer_id);
  }
  checks.push_back({.name = "layer_coverage",
                    .ok = missing.empty(),
                    .message = missing.empty() ? "" : "layers are missing: " + missing});
  checks.push_back({.name = "shape",
                    .ok = wrong.empty(),
                    .message = wrong.empty() ? "" : "heads differ from the model's in layers " + wrong});
}

struct CodedSubject : Subject {
  CodedPart set;
  double bits_of_manifest = 0;  // what the manifest says that rows take

  [[nodiscard]] const ModelIdentity& model() const override { return set.model; }
  [[nodiscard]] const CalibrationData& calibration() const override { return set.calibration; }
  [[nodiscard]] Windows windows() const override { return set.windows; }

  void describe(VerifyReport& report) const override {
    Json calibrated = to_json(set.calibration);
    calibrated.erase("blocks");
    report.rotation_set.update({{"format", kCodedSchema},
                                {"layers", set.layers.size()},
                                {"model", to_json(set.model)},
                                {"calibration", std::move(calibrated)},
                                {"recipe", "coded"},
                                {"bits", bits_of(set)},
                                {"scope", set.scope},
                                {"verified_before", set.verification.is_object()}});
    for (const CodedLayer& layer : set.layers) {
      for (const CodedTarget& target : {kKey, kValue}) {
        const CodedSide& side = layer.*target.side;
        for (std::size_t head = 0; head < side.formats.size(); ++head) {
          report.plan.push_back(
              {layer.layer_id, target.name, static_cast<int>(head), channels_by_bits(side.formats[head])});
        }
        std::vector<double> values = mean_variances(side);
        if (!values.empty()) report.spectra.push_back({layer.layer_id, target.name, std::move(values)});
      }
    }
  }

  void check_files(std::vector<Check>& /*checks*/) const override {}  // there is one file of each kind

  void check(const Expectation& expected, std::vector<Check>& checks) const override {
    for (const CodedLayer& layer : set.layers) {
      for (const CodedTarget& target : {kKey, kValue}) {
        const CodedSide& side = layer.*target.side;
        check_inverse_pair(side.transform, layer.layer_id, target.name, checks);
        const bool sane = std::ranges::all_of(side.lambda, [](double x) { return x >= 0; });
        checks.push_back({"spectrum", layer.layer_id, target.name, {}, {}, sane, sane ? "" : "a variance is negative"});
      }
    }
    check_bits(set, bits_of_manifest, checks);
    check_layers(set, expected.model, checks);
  }

  [[nodiscard]] bool measurable(const std::vector<Check>& checks) const override {
    return std::ranges::none_of(checks, [](const Check& check) { return check.ok == false; });
  }

  [[nodiscard]] std::optional<KvMethod> method(Windows of_report) const override {
    return method_of(set, of_report);
  }
  [[nodiscard]] int group_size() const override { return 0; }

  [[nodiscard]] DataMoments take(int layer, LayerStream& stream, bool same_tokens, std::int64_t /*tokens*/,
                                 Backend& backend) const override {
    return {{}, {coded_moments_of(layer, stream, set, same_tokens, backend)}};
  }
  [[nodiscard]] DataMoments take(const Statistics& statistics, std::vector<Check>& checks) const override {
    return {{}, coded_moments_of(statistics, checks)};
  }
  void check_on(const DataMoments& data, std::vector<Check>& checks) const override {
    check_coded_on_data(set, data.coded, checks);
  }

  [[nodiscard]] double bits() const override { return bits_of(set); }
  [[nodiscard]] VerifyThresholds default_limits() const override { return coded_thresholds(bits()); }
};

}  // namespace
}  // namespace oscar::verify

namespace oscar {

std::unique_ptr<Subject> open_coded(const std::filesystem::path& path) {
  auto subject = std::make_unique<verify::CodedSubject>();
  subject->path = path, subject->ours = true;
  subject->set = read_coded_set(path);
  subject->bits_of_manifest = read_json(path / "manifest.json")["codec"]["bits_taken"];
  return subject;
}

}  // namespace oscar
