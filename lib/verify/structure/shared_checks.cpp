// SPDX-License-Identifier: MIT
// What every part of a set is held to, whatever its kind: the files that the manifest lists, the model and the data
// that it was fitted on, its layers and their shapes, finite numbers, and matrices that undo each other.
//
// Checks of the numbers of rotations, without what they belong to: are eigenvalues those of a covariance, and has a
// matrix been through fp8 (e4m3: four bits of exponent, three of mantissa)? A conversion of a whole checkpoint may do
// that. Numbers below the smallest normal one are coarse there, or flushed to zero.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <ranges>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "set/manifest.hpp"
#include "set/set_folder.hpp"
#include "verify/structure/objective.hpp"
#include "verify/structure/subject.hpp"

namespace oscar::verify {
namespace {

void check_config(const ModelIdentity& fitted, const ModelIdentity& measured, std::vector<Check>& checks) {
  if (fitted.config_sha256.empty() || measured.config_sha256.empty()) {
    checks.push_back({.name = "model_identity",
                      .message = fitted.config_sha256.empty()
                                     ? "the set does not say which model it was fitted on"
                                     : "nothing says which model the set is meant for: give --model or --stats"});
    return;
  }
  const bool same = fitted.config_sha256 == measured.config_sha256;
  checks.push_back({.name = "model_identity",
                    .ok = same,
                    .message = same ? "" : "fitted on another model (" + fitted.id + "), whose architecture differs"});
  const auto differ = [&](auto number) {  // where both tell it
    const auto a = static_cast<float>(fitted.*number),
               b = static_cast<float>(measured.*number);  // which GGUF rounds to
    return a > 0 && b > 0 && a != b;
  };
  if (!same || !(differ(&ModelIdentity::num_layers) || differ(&ModelIdentity::num_attention_heads) ||
                 differ(&ModelIdentity::rope_theta))) {
    return;
  }
  checks.back().ok = false;
  checks.back().message = "the set says that its model has other layers, heads or rope_theta than it has";
}

/// Another commit may hold other weights, or only another README, and a set may do for other weights: that cannot be
/// decided here.
void check_weights(const ModelIdentity& fitted, const ModelIdentity& measured, std::vector<Check>& checks) {
  const auto compare = [&](const char* name, std::string ModelIdentity::*member, const std::string& message) {
    if ((fitted.*member).empty() || (measured.*member).empty()) return;
    const bool same = fitted.*member == measured.*member;
    checks.push_back({.name = name, .ok = same ? std::optional(true) : std::nullopt, .message = same ? "" : message});
  };
  compare("model_revision", &ModelIdentity::revision,
          "fitted on commit " + fitted.revision + " of the model, which is now " + measured.revision +
              ": the set is stale if the weights changed");
  if (fitted.config_sha256 != measured.config_sha256) return;
  compare("model_weights", &ModelIdentity::weights_sha256,
          "fitted on other weights of this architecture (" + fitted.id +
              "), such as those that a model was tuned from: figures on the model at hand decide");
}

void check_tokens(const SetUnderTest& set, std::vector<Check>& checks) {
  std::int64_t dim = 0;
  for (const auto& part : set.parts) {
    if (!part->made_of_data()) continue;
    for (const StoredSide& side : part->sides()) dim = std::max<std::int64_t>(dim, side.transform.rotation.dim);
  }
  if (dim == 0) return;
  const std::int64_t tokens = set.calibration.tokens, needed = kMinCalibrationTokensPerDim * dim;
  std::optional<bool> ok = tokens >= needed;
  std::string message = *ok ? "" : "fitted on too few tokens: directions are those of chance; fit on more text";
  if (tokens == 0) message = "the set does not say how many tokens it was fitted on";
  if (tokens == 0 && (set.manifest.is_null() || set.manifest.contains("origin"))) ok = std::nullopt;  // others may not
  checks.push_back(
      {"calibration_tokens", {}, "", static_cast<double>(tokens), static_cast<double>(needed), ok, message});
}

/// "0, 1, 5 …": at most eight.
std::string list_text(const std::set<int>& ids) {
  const auto text = [](int id) { return std::to_string(id); };
  return joined(std::views::take(ids, 8), ", ", text) + (ids.size() > 8 ? " …" : "");
}

/// have: the layers of one side.
void check_layers(const std::string& target, const std::set<int>& have, const Expectation& expected,
                  std::vector<Check>& checks) {
  const int num_layers = expected.model.num_layers;
  Check check{.name = "layer_coverage", .target = target, .value = static_cast<double>(have.size())};
  std::vector<int> of_model = expected.model.cache_layers;
  for (int id = 0; id < num_layers && expected.model.cache_layers.empty(); ++id) of_model.push_back(id);
  std::set<int> missing;
  const auto lacks = [&](int id) { return !have.contains(id); };
  std::ranges::copy_if(expected.data_layers, std::inserter(missing, missing.end()), lacks);
  std::ranges::copy_if(of_model, std::inserter(missing, missing.end()), lacks);
  if (num_layers == 0) {
    if (!missing.empty()) check.ok = false;
    check.message = !missing.empty() ? "the data has layers that the set lacks: " + list_text(missing)
                                     : "nothing says how many layers the model has: give --model or --stats";
  } else {
    const bool beyond = !have.empty() && *have.rbegin() >= num_layers;
    if (!missing.empty()) check.message = "nothing for layers " + list_text(missing) + " of " + expected.origin;
    if (beyond) check.message = "layer " + std::to_string(*have.rbegin()) + " does not exist by " + expected.origin;
    check.limit = static_cast<double>(of_model.size());
    check.ok = check.message.empty();
  }
  checks.push_back(std::move(check));
}

Check shape_of(const StoredSide& side, bool may_share, const Expectation& expected) {
  const ModelIdentity& model = expected.model;
  const auto of_layer = expected.dims.find(side.layer_id);
  const bool value = side.target == "value";
  const int dim = of_layer != expected.dims.end() ? (value ? of_layer->second.value : of_layer->second.key)
                                                  : (value && model.value_dim > 0 ? model.value_dim : model.head_dim);
  const MatrixStack& matrix = side.transform.rotation;
  Check check{"shape", side.layer_id, side.target, matrix.dim, {}, true, ""};
  if (dim > 0) check.limit = dim;
  if (dim > 0 && matrix.dim != dim) check.message = "the model's head_dim is " + std::to_string(dim);
  const std::int64_t heads = model.num_key_value_heads, means = std::ssize(side.transform.mean) / matrix.dim;
  const std::int64_t ratios = side.head_clip_ratios;
  const auto other = [heads](std::int64_t own) { return own > 1 && own != heads; };
  const bool cannot_share = !may_share && matrix.count != heads;
  if (heads > 0 && (cannot_share || other(matrix.count) || other(means) || (ratios > 0 && ratios != heads))) {
    check.message = "matrices, means or clip ratios are not of the model's " + plural(heads, "key-value head");
  }
  if (!check.message.empty()) {
    check.ok = false;
  } else if (dim == 0) {
    check.ok = std::nullopt;
    check.message = "nothing says what head_dim the model has: give --model, --dump or --stats";
  }
  return check;
}

Check finite_check(const StoredSide& side) {
  std::vector<std::span<const double>> all = side.more;
  for (const auto& own : {std::span(side.transform.rotation.data), std::span(side.transform.read_rotation.data),
                          std::span(side.transform.mean)}) {
    all.emplace_back(own);
  }
  double bad = 0;
  for (const auto& values : all) {
    bad += static_cast<double>(std::ranges::count_if(values, [](double x) { return !std::isfinite(x); }));
  }
  return {"finite",
          side.layer_id,
          side.target,
          bad,
          0.0,
          bad == 0,
          bad == 0 ? "" : "the file holds NaN or infinity: fit the set again"};
}

/// max |a^T a - I|; infinity if a is not finite.
double orthogonality_error(std::span<const double> a, std::size_t dim) {
  Matrix gram = multiply_transposed(a, a, dim);
  double worst = 0;
  for (std::size_t i = 0; i < dim; ++i) gram[i * dim + i] -= 1.0;
  for (const double x : gram) {
    if (!std::isfinite(x)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(x));
  }
  return worst;
}

double worst_error(const MatrixStack& stack) {
  double worst = 0;
  for (int m = 0; m < stack.count; ++m) {
    worst = std::max(worst, orthogonality_error(stack[m], static_cast<std::size_t>(stack.dim)));
  }
  return worst;
}

std::vector<double> row_lengths(std::span<const double> matrix, std::size_t dim) {
  std::vector<double> lengths(dim);
  for (std::size_t i = 0; i < matrix.size(); ++i) lengths[i / dim] += matrix[i] * matrix[i];
  for (double& length : lengths) length = std::sqrt(length);
  return lengths;
}

/// max |rotation read^T - I|, each entry relative to the lengths of the rows that meet in it: a key's channel is as
/// large as its row of the write side is short, so that this is what is left of a logit.
double worst_pair_error(const MatrixStack& rotation, const MatrixStack& read) {
  if (read.dim != rotation.dim || read.count != rotation.count) return std::numeric_limits<double>::infinity();
  double worst = 0;
  const auto dim = static_cast<std::size_t>(rotation.dim);
  for (int m = 0; m < rotation.count; ++m) {
    const Matrix product = multiply(rotation[m], transpose(read[m], dim), dim);
    const std::vector<double> written = row_lengths(rotation[m], dim), lengths = row_lengths(read[m], dim);
    for (std::size_t i = 0; i < product.size(); ++i) {
      const double scale = written[i / dim] * lengths[i % dim];
      const double error = std::abs(product[i] - (i / dim == i % dim ? 1.0 : 0.0)) / scale;
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
  }
  return worst;
}

MatrixStack as_bf16(MatrixStack stack) {
  for (double& x : stack.data) x = round_to_bf16(static_cast<float>(x));
  return stack;
}

/// The read side undoes the write side, or the matrices are orthogonal: exactly, and as servers cast them.
void check_inverse(const StoredSide& side, std::vector<Check>& checks) {
  const Transform& t = side.transform;
  const bool pair = t.read_rotation.count > 0;
  const std::string name = pair ? "inverse_pair" : "orthogonality";
  const std::string remedy = pair ? "the read side does not undo the write side: fit the set again"
                                  : "the inverse of the matrix is not its transpose: fit the set again";
  const double exact = pair ? worst_pair_error(t.rotation, t.read_rotation) : worst_error(t.rotation);
  const double served =
      pair ? worst_pair_error(as_bf16(t.rotation), as_bf16(t.read_rotation)) : worst_error(as_bf16(t.rotation));
  checks.push_back(at_most(kOrthogonalityLimit, exact, name, side.layer_id, side.target, remedy));
  checks.push_back(at_most(kBf16OrthogonalityLimit, served, name + "_bf16", side.layer_id, side.target,
                           "after the cast that servers make, " + remedy));
}

}  // namespace

Check at_most(double limit, double value, const std::string& name, std::optional<int> layer, const std::string& target,
              const std::string& message) {
  const bool ok = value <= limit;
  return {name, layer, target, value, limit, ok, ok ? "" : message};
}

std::vector<double> mean_spectrum(std::span<const double> variances, int dim) {
  const auto n = static_cast<std::size_t>(dim);
  if (n == 0 || variances.empty() || variances.size() % n != 0) return {};
  std::vector<double> mean(n);
  for (; !variances.empty(); variances = variances.subspan(n)) {
    std::vector<double> own(variances.begin(), variances.begin() + dim);
    std::ranges::sort(own, std::greater<>());
    if (own.front() <= std::max(own.back(), 0.0)) return {};
    for (std::size_t i = 0; i < n; ++i) mean[i] += own[i] / own.front();
  }
  const double heads = mean.front();  // each begins with 1
  for (double& x : mean) x /= heads;
  return mean;
}

void check_file_hashes(const std::filesystem::path& path, std::vector<Check>& checks) {
  const fs::path manifest_path = path / "manifest.json";
  if (!fs::is_directory(path) || !fs::exists(manifest_path)) {
    checks.push_back({.name = "file_hashes", .message = "there is no manifest that lists hashes"});
    return;
  }
  const Json manifest = read_json(manifest_path);
  validate_json(manifest, kSetSchema, manifest_path.string());
  const std::vector<std::string> found = defects_of_files(path, manifest);
  const std::string defects = found.empty() ? "" : joined(found, "; ") + ": pull or fit the set again";
  checks.push_back({"file_hashes", {}, "", static_cast<double>(found.size()), 0.0, found.empty(), defects});
}

void check_provenance(const SetUnderTest& set, const Expectation& expected, std::vector<Check>& checks) {
  check_config(set.model, expected.model, checks);
  check_weights(set.model, expected.model, checks);
  check_tokens(set, checks);
}

void check_shared(const Subject& subject, const Expectation& expected, std::vector<Check>& checks) {
  const std::vector<StoredSide> sides = subject.sides();
  std::map<std::string, std::set<int>> layers;
  for (const StoredSide& side : sides) layers[side.target].insert(side.layer_id);
  for (const auto& [target, have] : layers) check_layers(target, have, expected, checks);
  std::vector<std::vector<Check>> found(sides.size());
  parallel_for(sides.size(), [&](std::size_t i) {
    found[i] = {finite_check(sides[i]), shape_of(sides[i], subject.may_share_matrices(), expected)};
    if (subject.stores_read_sides()) check_inverse(sides[i], found[i]);
  });
  for (const auto& each : found) checks.insert(checks.end(), each.begin(), each.end());
}

bool measurable(const std::vector<Check>& checks) {
  constexpr std::array kNeeded{"finite", "shape", "layer_coverage", "clip_ratio"};
  return std::ranges::none_of(checks, [&](const Check& check) {
    return check.ok == false && std::ranges::find(kNeeded, check.name) != kNeeded.end();
  });
}

void for_each_side(const RotationSides& sides, std::vector<Check>& checks, const SideCheck& check) {
  for (const RotationSide& side : sides) {
    std::vector<std::vector<Check>> found(side.layers.size());
    parallel_for(found.size(),
                 [&](std::size_t i) { check(side, side.layers[i].layer_id, side.layers[i].transform, found[i]); });
    for (auto& part : found) checks.insert(checks.end(), part.begin(), part.end());
  }
}

namespace {

constexpr double kSmallestNormal = 0x1p-6;

/// Whether x = m 2^e with a mantissa of 4 bits, or a multiple of 2^-9 below the normal numbers.
bool is_e4m3(double x) {
  const double magnitude = std::abs(x);
  const double unit = magnitude < kSmallestNormal ? 0x1p-9 : std::exp2(std::floor(std::log2(magnitude)) - 3);
  return std::fmod(magnitude, unit) == 0;
}

std::string fp8_defect(std::span<const double> matrix) {
  std::set<double> magnitudes;
  bool zeros = false, subnormal = false, all_e4m3 = true;
  for (const double x : matrix) {
    all_e4m3 = all_e4m3 && is_e4m3(x);
    zeros = zeros || x == 0;
    subnormal = subnormal || (x != 0 && std::abs(x) < kSmallestNormal);
    if (x != 0 && magnitudes.size() < 3) magnitudes.insert(std::abs(x));
  }
  if (magnitudes.size() < 3) return "";  // a constant: Hadamard, permutation
  if (all_e4m3) return "every entry is a number of fp8 (e4m3): the matrix was converted";
  if (zeros && !subnormal)
    return "entries below 2^-6, which are subnormal in fp8 (e4m3), are all zero: they were flushed";
  return "";
}

}  // namespace

void check_fp8(const RotationSides& sides, std::vector<Check>& checks) {
  for_each_side(sides, checks,
                [](const RotationSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
                  std::string defect;
                  for (int m = 0; m < t.rotation.count && defect.empty(); ++m) defect = fp8_defect(t.rotation[m]);
                  out.push_back({"fp8_subnormals", layer, side.target, {}, {}, defect.empty(), defect});
                });
}

namespace {

/// What is wrong with one spectrum; empty if nothing is.
std::string spectrum_defect(std::span<const double> values, bool constant_allowed) {
  const auto finite = [](double x) { return std::isfinite(x); };
  if (!std::all_of(values.begin(), values.end(), finite)) return "an eigenvalue is NaN or infinite";
  const double highest = *std::max_element(values.begin(), values.end());
  if (highest <= 0) return "no eigenvalue is positive";
  if (values.front() < -kEigenvalueTolerance * highest) return "a covariance cannot have negative eigenvalues";
  if (!std::is_sorted(values.begin(), values.end()))
    return "eigenvalues are not ascending, so the permutation is wrong";
  if (!constant_allowed && values.size() > 1 && values.front() >= highest * (1 - kEigenvalueTolerance)) {
    return "all eigenvalues are equal: no data went into this rotation";
  }
  return "";
}

void check_spectra(const RotationSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
  if (t.eigenvalues.empty()) {
    out.push_back({"spectrum", layer, side.target, {}, {}, {}, "the set carries no eigenvalues"});
    return;
  }
  const auto dim = static_cast<std::size_t>(t.rotation.dim);
  if (dim == 0 || t.eigenvalues.size() % dim != 0) return;  // readers of sets refuse it
  std::string defect;
  std::size_t lowest_rank = dim;
  for (std::size_t begin = 0; begin < t.eigenvalues.size(); begin += dim) {
    const auto values = std::span(t.eigenvalues).subspan(begin, dim);
    if (defect.empty()) defect = spectrum_defect(values, is_hadamard(side.objective, t));
    const double zero = kEigenvalueTolerance * *std::max_element(values.begin(), values.end());
    const auto rank = std::count_if(values.begin(), values.end(), [zero](double x) { return x > zero; });
    lowest_rank = std::min(lowest_rank, static_cast<std::size_t>(rank));
  }
  out.push_back({"spectrum", layer, side.target, {}, {}, defect.empty(), defect});
  const auto limit = static_cast<double>(dim) / 2;
  const auto rank = static_cast<double>(lowest_rank);
  out.push_back(
      {"spectrum_rank", layer, side.target, rank, limit, rank >= limit,
       rank >= limit ? "" : "most directions had no data: the rotation is arbitrary there; fit on more tokens"});
}

}  // namespace

void check_spectrum(const RotationSides& sides, std::vector<Check>& checks) {
  for_each_side(sides, checks, check_spectra);
}

SetUnderTest under_test(Set set) {
  SetUnderTest out{set.model, set.calibration, set.windows, set.manifest, parts_of_readers(set), {}, {}};
  if (set.coded) out.parts.push_back(make_subject(std::move(*set.coded)));
  for (auto& [name, part] : set.rotations) out.parts.push_back(make_subject(name, std::move(part)));
  return out;
}

SetUnderTest open_set(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    Set set = read_set(path, ListedFiles::kChecked);
    std::vector<std::string> found;
    if (!set.manifest.is_null()) found = disagreements(path, set);
    SetUnderTest out = under_test(std::move(set));
    out.contradictions = std::move(found);
    return out;
  }
  if (path.extension() == ".h5" || path.extension() == ".safetensors" || path.extension() == ".gguf") {
    throw DataError("only sets and .pt files of rotations are verified", path.string(),
                    "convert it to a set first: oscar convert IN OUT --to set");
  }
  RotationFile file = read_rotation_pt(path);
  SetUnderTest out{.model = file.model, .calibration = file.calibration};
  out.parts.push_back(make_subject(path, std::move(file)));
  return out;
}

}  // namespace oscar::verify
