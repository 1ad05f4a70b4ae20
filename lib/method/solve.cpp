// SPDX-License-Identifier: MIT
#include "method/solve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "tensor/dtype.hpp"

namespace oscar {
namespace {

/// Largest share of the logits' energy that bfloat16 copies of a stretch may make by themselves.
constexpr double kMostDisturbance = 1e-3;
constexpr double kMostLambda = 1;

/// One matrix per head, or their mean.
MatrixStack of_heads(const LayerMoments& layer, Moment moment, bool per_head) {
  const MatrixStack& covariance = layer.covariance.at(moment);
  return per_head ? covariance : mean_over_heads(covariance);
}

SideTransform side_from(const MatrixStack& covariance, const std::vector<Spectrum>& spectra, MatrixStack rotation) {
  SideTransform side;
  side.rotation = rounded_to_f32(std::move(rotation));
  for (const Spectrum& spectrum : spectra) {
    side.eigenvalues.insert(side.eigenvalues.end(), spectrum.values.begin(), spectrum.values.end());
  }
  side.eigenvalues = rounded_to_f32(std::move(side.eigenvalues));
  side.covariance = rounded_to_f32(covariance);
  return side;
}

SideTransform hadamard_side(int dim) {
  SideTransform side;
  side.rotation = rounded_to_f32(hadamard_rotation(dim));
  side.eigenvalues.assign(static_cast<std::size_t>(dim), 1.0);
  return side;
}

/// Rotations by the spectra of one covariance of each layer.
std::vector<SideTransform> rotated_sides(LayersMoments layers, Moment moment, bool per_head, Composition composition,
                                         Backend& backend) {
  std::vector<MatrixStack> covariances;
  for (const LayerMoments* layer : layers) covariances.push_back(of_heads(*layer, moment, per_head));
  std::vector<const MatrixStack*> problems;
  for (const MatrixStack& covariance : covariances) problems.push_back(&covariance);
  const auto spectra = decompose(problems, backend);
  std::vector<SideTransform> sides;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    sides.push_back(side_from(covariances[i], spectra[i], compose(spectra[i], composition)));
  }
  return sides;
}

/// The covariances that a stretch weighs against each other.
struct KeysAndQueries {
  MatrixStack key, query;
};

KeysAndQueries stretch_covariances(const LayerMoments& layer, const Recipe& recipe) {
  const bool fisher = recipe.key_objective == Moment::kFisher;
  MatrixStack key = layer.covariance.at(fisher ? Moment::kFisherKey : Moment::kKtk);
  if (recipe.center) key = centred(std::move(key), fisher ? layer.fisher_key_mean : layer.key_mean, layer.key_mean);
  MatrixStack query = layer.covariance.at(recipe.key_objective);
  if (recipe.key_per_head) return {std::move(key), std::move(query)};
  return {mean_over_heads(key), mean_over_heads(query)};
}

double worst(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

SideTransform side_from(Stretched stretched, const KeysAndQueries& covariances, const StretchOptions& options) {
  SideTransform side;
  side.covariance = rounded_to_f32(covariances.key);
  side.query_covariance = rounded_to_f32(covariances.query);
  static_cast<Transform&>(side) = std::move(stretched.transform);
  side.eigenvalues = rounded_to_f32(std::move(stretched.eigenvalues));
  side.scores["stretch"] = {{"predicted_gain", stretched.predicted_gain},
                            {"condition", stretched.condition},
                            {"bf16_disturbance", stretched.bf16_disturbance},
                            {"power", options.power},
                            {"lambda", options.lambda}};
  return side;
}

/// Again, for one layer, until bfloat16 copies of the matrices are good enough.
SideTransform regularised_side(const LayerMoments& layer, const KeysAndQueries& covariances, const Recipe& recipe,
                               StretchOptions options, Backend& backend, Status& status) {
  while (options.lambda * 10 <= kMostLambda) {
    options.lambda *= 10;
    Stretched stretched = std::move(stretch({{&covariances.key, &covariances.query}}, options, backend).front());
    if (worst(stretched.bf16_disturbance) > kMostDisturbance) continue;
    status.notice(
        fmt::format("layer {}: the stretch is regularised with lambda {} instead of {}, or bfloat16 would "
                    "spoil it",
                    layer.layer_id, options.lambda, recipe.stretch_lambda));
    return side_from(std::move(stretched), covariances, options);
  }
  throw NumericalError("the metric of the stretch is so ill-conditioned that bfloat16 copies disturb the logits",
                       "layer " + std::to_string(layer.layer_id),
                       "name the readers of other parts by --for, or leave the layer out");
}

std::vector<SideTransform> stretched_keys(LayersMoments layers, const Recipe& recipe, Backend& backend,
                                          Status& status) {
  std::vector<KeysAndQueries> covariances;
  for (const LayerMoments* layer : layers) covariances.push_back(stretch_covariances(*layer, recipe));
  std::vector<StretchProblem> problems;
  for (const KeysAndQueries& each : covariances) problems.push_back({&each.key, &each.query});
  const StretchOptions options{
      .power = recipe.stretch_power, .lambda = recipe.stretch_lambda, .composition = recipe.composition};
  std::vector<Stretched> stretched = stretch(problems, options, backend);
  std::vector<SideTransform> sides;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool good = worst(stretched[i].bf16_disturbance) <= kMostDisturbance;
    sides.push_back(good ? side_from(std::move(stretched[i]), covariances[i], options)
                         : regularised_side(*layers[i], covariances[i], recipe, options, backend, status));
  }
  return sides;
}

using Spectra = std::vector<Spectrum>;

/// Every head of every problem, in a row.
struct Heads {
  int dim = 0;
  MatrixStack key, query;  // as given
  MatrixStack a, b;        // scaled to a mean eigenvalue of 1, plus lambda
};

MatrixStack stack_of(const std::vector<Matrix>& matrices, int dim) {
  MatrixStack stack(static_cast<int>(matrices.size()), dim);
  for (int i = 0; i < stack.count; ++i) {
    std::copy(matrices[static_cast<std::size_t>(i)].begin(), matrices[static_cast<std::size_t>(i)].end(),
              stack[i].begin());
  }
  return stack;
}

/// f(head) for each head, as a stack.
template <class F>
MatrixStack for_heads(const Heads& heads, const F& f) {
  std::vector<Matrix> matrices(static_cast<std::size_t>(heads.key.count));
  parallel_for(matrices.size(), [&](std::size_t h) { matrices[h] = f(static_cast<int>(h)); });
  return stack_of(matrices, heads.dim);
}

void append(const MatrixStack& from, MatrixStack& to) {
  to.count += from.count;
  to.data.insert(to.data.end(), from.data.begin(), from.data.end());
}

Matrix regularised(std::span<const double> covariance, double lambda, int dim) {
  const double mean = std::max(trace(covariance, dim) / dim, 1e-300);
  Matrix out(covariance.begin(), covariance.end());
  for (double& value : out) value /= mean;
  for (int i = 0; i < dim; ++i) out[static_cast<std::size_t>(i) * (static_cast<std::size_t>(dim) + 1)] += lambda;
  return out;
}

Heads gather(const std::vector<StretchProblem>& problems, double lambda) {
  Heads heads;
  heads.dim = problems.front().key->dim;
  heads.key = heads.query = MatrixStack(0, heads.dim);
  for (const StretchProblem& problem : problems) {
    OSCAR_CHECK(problem.key->dim == heads.dim && problem.query->dim == heads.dim);
    OSCAR_CHECK(problem.key->count == problem.query->count);
    append(*problem.key, heads.key);
    append(*problem.query, heads.query);
  }
  heads.a = for_heads(heads, [&](int h) { return regularised(heads.key[h], lambda, heads.dim); });
  heads.b = for_heads(heads, [&](int h) { return regularised(heads.query[h], lambda, heads.dim); });
  return heads;
}

/// x y x
Matrix sandwich(const Matrix& x, std::span<const double> y, int dim) { return multiply(multiply(x, y, dim), x, dim); }

/// Spectra of x[h]^power[h] … of C_K^1/2 C_Q C_K^1/2.
Spectra inner_spectra(const Heads& heads, const Spectra& key, const MatrixStack& query, Backend& backend) {
  return decompose(
      for_heads(heads,
                [&](int h) { return sandwich(power_of(key[static_cast<std::size_t>(h)], 0.5), query[h], heads.dim); }),
      backend);
}

/// tr(C_K) tr(C_Q) / tr(inner^1/2)^2.
double gain_of(const Heads& heads, int h, const Spectrum& inner) {
  double root = 0;
  for (const double value : inner.values) root += std::sqrt(std::max(value, 0.0));
  return trace(heads.key[h], heads.dim) * trace(heads.query[h], heads.dim) / std::max(root * root, 1e-300);
}

/// Eigenvalues within max_condition^(2 / power) of the largest, so that those of M^(power/2) are within max_condition.
void bound_condition(Spectrum& metric, const StretchOptions& options) {
  if (options.power <= 0) return;
  const double lowest = metric.values.back() / std::pow(options.max_condition, 2 / options.power);
  for (double& value : metric.values) value = std::max(value, lowest);
}

double condition_of(const Spectrum& metric, double power) {
  return std::pow(metric.values.back() / metric.values.front(), power / 2);
}

double product_trace(std::span<const double> a, std::span<const double> b) {  // of a b, both symmetric
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// tr(E^T C_Q E C_K) / tr(C_Q C_K), E = bf16(read) bf16(write)^T - I.
double disturbance_of(const Heads& heads, int h, const Matrix& write, const Matrix& read) {
  const auto served = [](Matrix matrix) {
    for (double& value : matrix) value = round_to_bf16(static_cast<float>(value));
    return matrix;
  };
  Matrix e = multiply(served(read), transposed(served(write), heads.dim), heads.dim);
  for (int i = 0; i < heads.dim; ++i) e[static_cast<std::size_t>(i) * (static_cast<std::size_t>(heads.dim) + 1)] -= 1;
  const Matrix noise = multiply(multiply(transposed(e, heads.dim), heads.query[h], heads.dim), e, heads.dim);
  return product_trace(noise, heads.key[h]) / std::max(product_trace(heads.query[h], heads.key[h]), 1e-300);
}

struct Pair {
  Matrix write, read;
  double bf16_disturbance = 0;
};

Pair pair_of(const Heads& heads, int h, const Spectrum& metric, const Spectrum& tail, const StretchOptions& options) {
  const Matrix basis = compose({tail}, options.composition).data;
  Pair pair{rounded_to_f32(multiply(power_of(metric, options.power / 2), basis, heads.dim)),
            rounded_to_f32(multiply(power_of(metric, -options.power / 2), basis, heads.dim))};
  pair.bf16_disturbance = disturbance_of(heads, h, pair.write, pair.read);
  return pair;
}

QkvView view_of(const SampledSequence& sequence) {
  return {heads_view(sequence.q, "q"), heads_view(sequence.k, "k"), heads_view(sequence.v, "v")};
}

/// The codec at every ratio: for the keys, or for the values if the key codec is settled.
std::vector<HistoryCodecs> candidates(const RowCodec& codec, const std::optional<HistoryCodec>& key) {
  std::vector<HistoryCodecs> all;
  for (const double ratio : clip_candidates()) {
    const RowCodec candidate = with_ratio(codec, ratio);
    all.push_back(key ? HistoryCodecs{key, candidate} : HistoryCodecs{candidate, {}});
  }
  return all;
}

std::vector<std::unique_ptr<MixedSequence>> hold_all(const std::vector<SampledSequence>& sample, const Transform& key,
                                                     const Transform& value, Backend& backend) {
  std::vector<std::unique_ptr<MixedSequence>> held;
  for (const SampledSequence& sequence : sample) {
    held.push_back(backend.hold({view_of(sequence), sequence.query_positions, &key, &value}));
  }
  return held;
}

/// Per candidate and KV head, over all sequences.
std::vector<std::vector<AttentionErrors>> errors_of_heads(const std::vector<std::unique_ptr<MixedSequence>>& sequences,
                                                          const std::vector<HistoryCodecs>& candidates, int kv_heads,
                                                          Windows windows) {
  std::vector<std::vector<AttentionErrors>> sums(candidates.size(),
                                                 std::vector<AttentionErrors>(static_cast<std::size_t>(kv_heads)));
  for (const auto& sequence : sequences) {
    const auto errors = sequence->compare(candidates, windows);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::size_t group = errors[i].size() / sums[i].size();
      for (std::size_t head = 0; head < errors[i].size(); ++head) sums[i][head / group].add(errors[i][head]);
    }
  }
  return sums;
}

AttentionErrors total(const std::vector<AttentionErrors>& heads) {
  AttentionErrors sum;
  for (const AttentionErrors& head : heads) sum.add(head);
  return sum;
}

using Metric = double (*)(const AttentionErrors&);
double mean_kl(const AttentionErrors& errors) { return errors.softmax_kl / static_cast<double>(errors.queries); }
double output_rel_error(const AttentionErrors& errors) {
  return errors.output_error / std::max(errors.output_norm, 1e-300);
}

/// errors: by candidate and KV head.
SideClipScores scores_by(const std::vector<std::vector<AttentionErrors>>& errors, Metric metric) {
  SideClipScores scores{{}, std::vector<std::vector<double>>(errors.front().size())};
  for (const std::vector<AttentionErrors>& heads : errors) {
    scores.layer.push_back(metric(total(heads)));
    for (std::size_t head = 0; head < heads.size(); ++head) scores.heads[head].push_back(metric(heads[head]));
  }
  return scores;
}

}  // namespace

std::string Recipe::key_name() const {
  if (kind == Kind::kHadamard) return "hadamard";
  return fmt::format("{}{}_{}", kind == Kind::kStretch ? "stretch_" : "", name_of(key_objective), name_of(composition));
}

std::string Recipe::value_name() const {
  return kind == Kind::kHadamard ? "hadamard" : fmt::format("sst_{}", name_of(composition));
}

std::set<Moment> Recipe::moments() const {
  if (kind == Kind::kHadamard) return {};
  std::set<Moment> wanted{key_objective, Moment::kSst, Moment::kQqt};
  if (kind == Kind::kStretch && key_objective == Moment::kQqt) wanted.insert(Moment::kKtk);
  if (center) wanted.insert(Moment::kKeys);
  return wanted;
}

std::vector<LayerRotation> solve(LayersMoments layers, const Recipe& recipe, Backend& backend, Status& status) {
  std::vector<LayerRotation> fitted;
  if (recipe.kind == Recipe::Kind::kHadamard) {
    for (const LayerMoments* layer : layers) {
      fitted.push_back({layer->layer_id, hadamard_side(layer->key_dim), hadamard_side(layer->value_dim)});
    }
    return fitted;
  }
  std::vector<SideTransform> keys =
      recipe.kind == Recipe::Kind::kStretch
          ? stretched_keys(layers, recipe, backend, status)
          : rotated_sides(layers, recipe.key_objective, recipe.key_per_head, recipe.composition, backend);
  std::vector<SideTransform> values =
      rotated_sides(layers, Moment::kSst, recipe.value_per_head, recipe.composition, backend);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    fitted.push_back({layers[i]->layer_id, std::move(keys[i]), std::move(values[i])});
    if (!recipe.center) continue;
    fitted.back().key.mean = rounded_to_f32(layers[i]->key_mean);
  }
  return fitted;
}

std::vector<Stretched> stretch(const std::vector<StretchProblem>& problems, const StretchOptions& options,
                               Backend& backend) {
  if (problems.empty()) return {};
  const Heads heads = gather(problems, options.lambda);
  const int dim = heads.dim;
  const auto at = [](int h) { return static_cast<std::size_t>(h); };
  const Spectra plain = inner_spectra(heads, decompose(heads.key, backend), heads.query, backend);
  const Spectra key = decompose(heads.a, backend);
  const Spectra inner = inner_spectra(heads, key, heads.b, backend);
  Spectra metric = decompose(
      for_heads(heads, [&](int h) { return sandwich(power_of(key[at(h)], -0.5), power_of(inner[at(h)], 0.5), dim); }),
      backend);
  for (Spectrum& spectrum : metric) bound_condition(spectrum, options);
  const Spectra tails = decompose(
      for_heads(heads, [&](int h) { return sandwich(power_of(metric[at(h)], options.power / 2), heads.a[h], dim); }),
      backend);
  std::vector<Pair> pairs(metric.size());
  parallel_for(pairs.size(),
               [&](std::size_t h) { pairs[h] = pair_of(heads, static_cast<int>(h), metric[h], tails[h], options); });
  std::vector<Stretched> results;
  int h = 0;
  for (const StretchProblem& problem : problems) {
    Stretched& result = results.emplace_back();
    std::vector<Matrix> write, read;
    for (int i = 0; i < problem.key->count; ++i, ++h) {
      write.push_back(std::move(pairs[at(h)].write));
      read.push_back(std::move(pairs[at(h)].read));
      result.eigenvalues.insert(result.eigenvalues.end(), tails[at(h)].values.begin(), tails[at(h)].values.end());
      result.predicted_gain.push_back(gain_of(heads, h, plain[at(h)]));
      result.condition.push_back(condition_of(metric[at(h)], options.power));
      result.bf16_disturbance.push_back(pairs[at(h)].bf16_disturbance);
    }
    result.transform = {stack_of(write, dim), stack_of(read, dim), {}};
  }
  return results;
}

RowCodec with_ratio(RowCodec codec, double ratio) {
  codec.clip_ratio = ratio;
  return codec;
}

const std::vector<double>& clip_candidates() {
  static const std::vector<double> kRatios{1.0, 0.98, 0.96, 0.95, 0.94, 0.93, 0.92, 0.9, 0.88, 0.85};
  return kRatios;
}

ClipScores score_clip_ratios(const std::vector<SampledSequence>& sample, const Transform& key, const Transform& value,
                             const HistoryCodecs& codecs, bool keys_per_head, Windows windows, Backend& backend) {
  const auto held = hold_all(sample, key, value, backend);
  const auto kv_heads = static_cast<int>(sample.front().k.shape[1]);
  const auto sweep = [&](const RowCodec& codec, const std::optional<HistoryCodec>& settled_key, Metric metric) {
    return scores_by(errors_of_heads(held, candidates(codec, settled_key), kv_heads, windows), metric);
  };
  ClipScores scores{.key = sweep(*codecs.key, std::nullopt, mean_kl), .value = {}};
  HistoryCodec key_codec = with_ratio(*codecs.key, best_clip_ratio(scores.key.layer));
  if (keys_per_head) key_codec.head_clip_ratios = best_clip_ratios(scores.key.heads);
  scores.value = sweep(*codecs.value, key_codec, output_rel_error);
  return scores;
}

double best_clip_ratio(const std::vector<double>& scores) {
  const double enough = *std::min_element(scores.begin(), scores.end()) * (1 + kClipSlack);
  const auto best = std::find_if(scores.begin(), scores.end(), [&](double score) { return !(score > enough); });
  return clip_candidates()[static_cast<std::size_t>(best - scores.begin())];
}

std::vector<double> best_clip_ratios(const std::vector<std::vector<double>>& heads) {
  std::vector<double> ratios;
  for (const std::vector<double>& scores : heads) ratios.push_back(best_clip_ratio(scores));
  return ratios;
}

}  // namespace oscar
