// SPDX-License-Identifier: MIT
// --recipe auto: candidates that the target can serve are fitted on a part of the calibration data, and judged on the
// rest by what they do to attention, with windows and bfloat16 in place, and by what they do to the model if it is at
// hand. The choice is fitted again on everything.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fit/fit.hpp"
#include "fit/options.hpp"
#include "set/rotation_part.hpp"

namespace oscar {

struct Candidate {
  std::string name;  // "stretch fisher, minmax 4,4"
  FitOptions options;
  Recipe recipe;
};

/// Returns the candidates in the order of reports.
[[nodiscard]] std::vector<Candidate> search_candidates(const FitOptions& options);

/// Returns what decides the parts of layers that a search keeps (FitHooks::kept): the model, the data, the layers and
/// all recipes that it tries.
[[nodiscard]] RotationPart unfitted_search(const QkvSource& source, const FitOptions& options);

/// What a candidate does to the attention of one layer on held-out sequences; see kernels/README.md.
struct AttentionScore {
  double softmax_kl = 0, output_rel_error = 0;
};

/// One candidate, or a mixture that takes each layer from its best candidate.
struct Scored {
  std::string name;
  std::vector<std::size_t> candidate_of_layer;
  std::vector<AttentionScore> layers;
  double seconds = 0;
  std::optional<ModelScore> model = {};

  /// Mean over layers.
  [[nodiscard]] AttentionScore mean() const;
};

/// The scored candidates, and a mixture of them if none is the best in all layers. codec: that of all of them.
[[nodiscard]] std::vector<Scored> with_mixture(std::vector<Scored> scored, const std::string& codec);

/// What is chosen, and why.
struct Choice {
  std::size_t index = 0;
  std::string reason;
};
/// Chooses. With model scores: of those within 10 % of the lowest KL, those whose probes are the best or within a
/// standard error of them, and of these the one with the lowest KL. Without: of those within 10 % of the lowest softmax
/// KL, the one with the lowest output error.
[[nodiscard]] Choice choose(const std::vector<Scored>& scored);

/// Returns the scores for the manifest, without times, which are no two runs' the same.
[[nodiscard]] Json to_json(const std::vector<Scored>& scored);
/// Returns a line about a candidate for people, with the time that it took.
[[nodiscard]] std::string describe(const Scored& scored);

/// Returns a set of one recipe, or a mixture of them by layer, chosen for the target: the work of fit() with recipe
/// auto. Throws TooLittleData.
[[nodiscard]] RotationPart fit_best(QkvSource& source, const FitOptions& options, const FitHooks& hooks,
                                   Backend& backend, Status& status);

}  // namespace oscar
