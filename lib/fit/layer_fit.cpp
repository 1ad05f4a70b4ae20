// SPDX-License-Identifier: MIT
#include "fit/layer_fit.hpp"

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "spectral/spectrum.hpp"
#include "stats/moments.hpp"
#include "transform/compose.hpp"

namespace oscar {
namespace {

template <std::size_t N>
void require_one_of(const std::string& value, const char* option, const std::array<const char*, N>& known) {
  std::string list;
  for (const char* name : known) {
    if (value == name) return;
    list += (list.empty() ? "" : ", ") + std::string(name);
  }
  throw UsageError("unknown value \"" + value + "\"", option, "use one of: " + list);
}

MatrixStack rounded_to_f32(MatrixStack stack) {
  for (double& value : stack.data) value = static_cast<double>(static_cast<float>(value));
  return stack;
}

/// Covariances of a layer, one matrix or one per KV head.
struct Covariances {
  MatrixStack key, value;
};

Covariances layer_covariances(LayerStream& layer, const Recipe& recipe, Backend& backend) {
  Covariances out;
  MatrixStack query;
  if (recipe.key_objective == "qqt" || recipe.value_objective == "sst") query = query_moments(layer, backend).mean();
  out.key = recipe.key_objective == "qqt" ? query : plain_moments(layer, Side::kKey, backend).mean();
  if (recipe.value_objective == "sst") {
    out.value = score_weighted_value_moments(layer, query, backend).mean();
  } else if (recipe.value_objective == "oto") {
    out.value = output_moments(layer, backend).mean();
  } else {
    out.value = plain_moments(layer, Side::kValue, backend).mean();
  }
  if (!recipe.per_head) out = {mean_over_heads(out.key), mean_over_heads(out.value)};
  return out;
}

SideTransform transform_from(const MatrixStack& covariance, const std::vector<Spectrum>& spectra,
                             MatrixStack rotation) {
  SideTransform side;
  side.rotation = rounded_to_f32(std::move(rotation));
  for (const Spectrum& spectrum : spectra) {
    side.eigenvalues.insert(side.eigenvalues.end(), spectrum.values.begin(), spectrum.values.end());
  }
  side.covariance = rounded_to_f32(covariance);
  return side;
}

const MatrixStack& reference_of(const std::vector<std::pair<int, SideTransform>>& layers, int layer_id) {
  for (const auto& [id, side] : layers) {
    if (id == layer_id) return side.rotation;
  }
  throw DataError("the reference rotation has no layer " + std::to_string(layer_id), "--reference-rotation",
                  "give a reference that covers every layer, or choose --layers");
}

SideTransform fit_side(LayerStream& layer, Side side, const MatrixStack& covariance, const Recipe& recipe,
                       const std::vector<std::pair<int, SideTransform>>& reference, int layer_id, Backend& backend) {
  const std::vector<Spectrum> spectra = decompose(covariance, backend);
  if (recipe.kind == Recipe::Kind::kSpectral) {
    return transform_from(covariance, spectra, compose(spectra, composition_from_name(recipe.composition)));
  }
  MatrixStack residual = residual_moments(layer, side, reference_of(reference, layer_id), backend).mean();
  if (!recipe.per_head) residual = mean_over_heads(residual);
  return transform_from(covariance, spectra, residual_rotation(decompose(residual, backend), spectra));
}

SideTransform hadamard_side(int dim) {
  SideTransform side;
  side.rotation = rounded_to_f32(hadamard_rotation(dim));
  side.eigenvalues.assign(static_cast<std::size_t>(dim), 1.0);
  return side;
}

}  // namespace

std::string Recipe::key_name() const {
  if (kind == Kind::kHadamard) return "hadamard";
  return kind == Kind::kResidual ? "uresidual" : key_objective + "_" + composition;
}

std::string Recipe::value_name() const {
  if (kind == Kind::kHadamard) return "hadamard";
  return kind == Kind::kResidual ? "uresidual" : value_objective + "_" + composition;
}

Recipe resolve_recipe(const FitOptions& options) {
  require_one_of<4>(options.recipe, "--recipe", {"oscar", "ktk_vtv", "hadamard", "uresidual"});
  require_one_of<2>(options.key_objective, "--key-objective", {"qqt", "ktk"});
  require_one_of<3>(options.value_objective, "--value-objective", {"sst", "oto", "vtv"});
  require_one_of<2>(options.granularity, "--granularity", {"layer", "head"});
  require_one_of<2>(options.target, "--target", {"sglang-v1", "any"});
  (void)composition_from_name(options.composition);
  if (options.granularity == "head" && options.target != "any") {
    throw UsageError("target " + options.target + " cannot serve one rotation per head", "--granularity head",
                     "use --target any, or --granularity layer");
  }
  if (options.recipe == "uresidual" && options.reference_rotation.empty()) {
    throw UsageError("recipe uresidual needs a reference rotation", "--reference-rotation",
                     "give a rotation set, for example one fitted with --recipe oscar");
  }
  Recipe recipe{Recipe::Kind::kSpectral, options.key_objective, options.value_objective, options.composition,
                options.granularity == "head"};
  if (options.recipe == "ktk_vtv") recipe.key_objective = "ktk", recipe.value_objective = "vtv";
  if (options.recipe == "hadamard") recipe.kind = Recipe::Kind::kHadamard;
  if (options.recipe == "uresidual") recipe.kind = Recipe::Kind::kResidual;
  return recipe;
}

LayerRotation fit_layer(int layer_id, LayerStream& layer, const Recipe& recipe, const ReferenceRotation& reference,
                        Backend& backend) {
  if (recipe.kind == Recipe::Kind::kHadamard) {
    QkvChunk chunk;
    layer.rewind();
    if (!layer.next(chunk)) throw DataError("no tokens", "layer " + std::to_string(layer_id), "dump again");
    return {layer_id, hadamard_side(chunk.view.k.head_dim), hadamard_side(chunk.view.v.head_dim)};
  }
  const Covariances covariances = layer_covariances(layer, recipe, backend);
  return {layer_id, fit_side(layer, Side::kKey, covariances.key, recipe, reference.key, layer_id, backend),
          fit_side(layer, Side::kValue, covariances.value, recipe, reference.value, layer_id, backend)};
}

}  // namespace oscar
