// SPDX-License-Identifier: MIT
#include "verify/optr_method.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "base/threads.hpp"
#include "codec/optr/fit.hpp"
#include "dump/live_source.hpp"

namespace oscar::verify {
namespace {

/// W_j^T W_j / hidden_size of every query head j; weight: (hidden_size, Hq, d).
MatrixStack output_forms(const Tensor& weight) {
  const std::vector<double> values = weight.to_doubles();
  const auto heads = static_cast<std::size_t>(weight.shape[1]), dim = static_cast<std::size_t>(weight.shape[2]);
  MatrixStack forms(static_cast<int>(heads), static_cast<int>(dim));
  const double share = 1 / static_cast<double>(weight.shape[0]);
  parallel_for(heads, [&](std::size_t j) {
    const std::span<double> form = forms[static_cast<int>(j)];
    for (std::size_t row = j * dim; row < values.size(); row += heads * dim) {
      for (std::size_t a = 0; a < dim; ++a) {
        const double factor = share * values[row + a];
        for (std::size_t b = 0; b < dim; ++b) form[a * dim + b] += factor * values[row + b];
      }
    }
  });
  return forms;
}

/// A layer's rows, kept while they are looked at.
struct LayerText {
  std::vector<QkvChunk> chunks;
  std::vector<QkvView> sequences;

  explicit LayerText(LayerStream& stream) {
    QkvChunk chunk;
    while (stream.next(chunk)) {
      chunks.push_back(chunk);
      for (const SequenceRange& range : chunk.sequences) sequences.push_back(chunk.view.tokens(range));
    }
  }
};

/// How many heads kept what was found.
struct Kept {
  std::ptrdiff_t kept = 0;
  std::size_t all = 0;

  void add(const std::vector<OptrHead>& heads) {
    kept += std::count_if(heads.begin(), heads.end(), [](const OptrHead& head) { return head.kept(); });
    all += heads.size();
  }
  [[nodiscard]] std::string text() const { return std::to_string(kept) + " of " + std::to_string(all); }
};

}  // namespace

KvMethod fitted_optr(const OptrCalibration& calibration, ModelRunner& runner, const std::vector<LayerShape>& layers,
                     Windows windows, Backend& backend, Status& status) {
  LiveOptions live;
  for (const LayerShape& shape : layers) live.layers.push_back(shape.layer_id);
  const auto source = open_live(runner, calibration.texts, live, status);
  KvMethod method{"optr", MethodKind::kBaseline, windows, {}};
  Kept keys, values;
  for (const int layer : live.layers) {
    status.progress("OptR, layer", static_cast<std::int64_t>(method.layers.size()),
                    static_cast<std::int64_t>(layers.size()));
    const auto stream = source->open(layer);
    const LayerText text(*stream);
    OptrFit fit =
        fit_optr({text.sequences, output_forms(calibration.output_projection(layer))}, {.windows = windows}, backend);
    keys.add(fit.keys), values.add(fit.values);
    method.layers[layer] = std::move(fit.layer);
  }
  method.description = "OSCAR's rotations and OptR: centred keys, rotations refined with W_O on " +
                       plural(calibration.texts.size(), "calibration text") + " (kept by " + keys.text() +
                       " heads for keys, " + values.text() + " for values)";
  return method;
}

}  // namespace oscar::verify
