// SPDX-License-Identifier: MIT
#include "fit/clip_choice.hpp"

#include <fmt/format.h>

#include <charconv>
#include <tuple>

#include "base/errors.hpp"
#include "measure/kv_method.hpp"

namespace oscar {
namespace {

/// Fixed ratios, or none if they are to be fitted.
std::optional<std::pair<double, double>> parse_clip(const std::string& text) {
  if (text == "auto") return std::nullopt;
  if (text == "off") return std::pair(0.0, 0.0);
  double key = -1, value = -1;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, key);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == ',') {
    const auto second = std::from_chars(first.ptr + 1, end, value);
    if (second.ec != std::errc() || second.ptr != end) value = -1;
  }
  const auto is_ratio = [](double ratio) { return ratio >= 0 && ratio <= 1; };
  if (!is_ratio(key) || !is_ratio(value)) {
    throw UsageError("cannot read the clip ratios \"" + text + "\"", "--clip",
                     "use auto, off, or two ratios from 0 to 1 like 0.96,0.92");
  }
  return std::pair(key, value);
}

/// Sums of scores over layers: the best single ratio for servers without tables.
void add_scores(std::vector<double>& sum, const SideTransform& side) {
  if (!side.scores.contains("clip")) return;
  const auto scores = side.scores["clip"]["scores"].get<std::vector<double>>();
  sum.resize(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) sum[i] += scores[i];
}

void choose_ratios(const SideClipScores& scores, bool per_head, const char* metric, SideTransform& side) {
  side.clip_ratio = best_clip_ratio(scores.layer);
  Json& record = side.scores["clip"];
  record = {{"metric", metric}, {"clip_ratios", clip_candidates()}, {"scores", scores.layer}};
  if (!per_head) return;
  side.head_clip_ratios = best_clip_ratios(scores.heads);
  record["scores_per_head"] = scores.heads;
}

}  // namespace

ClipChoice::ClipChoice(const FitOptions& options, const Recipe& recipe, const std::optional<SampleOptions>& sample,
                       Backend& backend, Status& status)
    : options_(sample.value_or(SampleOptions{})),
      recipe_(recipe),
      fixed_(parse_clip(options.clip)),
      backend_(backend),
      status_(status) {
  if (fixed_ || sample) return;
  fixed_ = {kPublishedKeyClip, kPublishedValueClip};
  status_.notice(fmt::format("clip ratios {},{}, the published constants: these statistics keep no rows to fit them on",
                             kPublishedKeyClip, kPublishedValueClip));
}

void ClipChoice::apply(const std::vector<SampledSequence>& sample, LayerRotation& layer) const {
  std::tie(layer.key.clip_ratio, layer.value.clip_ratio) =
      fixed_.value_or(std::pair(kPublishedKeyClip, kPublishedValueClip));
  if (fixed_) return;
  if (sample.empty()) {
    status_.warning("layer " + std::to_string(layer.layer_id) +
                    ": no sequence is longer than the windows, so nothing can be measured; the clip ratios are the "
                    "published constants");
    return;
  }
  const ClipScores scores = score_clip_ratios(sample, layer.key, layer.value, recipe_.codecs, recipe_.key_clip_per_head,
                                              recipe_.windows, backend_);
  choose_ratios(scores.key, recipe_.key_clip_per_head, "softmax_kl", layer.key);
  choose_ratios(scores.value, recipe_.value_clip_per_head, "output_rel_error", layer.value);
}

void ClipChoice::finish(const std::vector<SampledSequence>& sample, RotationPart& part) const {
  const auto [key, value] = fixed_.value_or(std::pair(kPublishedKeyClip, kPublishedValueClip));
  std::vector<double> key_sum, value_sum;
  for (const LayerRotation& layer : part.layers) {
    add_scores(key_sum, layer.key);
    add_scores(value_sum, layer.value);
  }
  part.key_clip_scalar = key_sum.empty() ? key : best_clip_ratio(key_sum);
  part.value_clip_scalar = value_sum.empty() ? value : best_clip_ratio(value_sum);
  part.has_clip_ratios = true;
  if (key_sum.empty()) return;
  const std::string description = describe(sample, options_);
  part.recipe["clip_sample"] = description;
}

}  // namespace oscar
