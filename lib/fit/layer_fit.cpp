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

MatrixStack of_heads_or_layer(MatrixStack per_head, const Recipe& recipe) {
  return recipe.per_head ? std::move(per_head) : mean_over_heads(per_head);
}

void take_covariances(LayerStream& layer, const Recipe& recipe, Backend& backend, LayerMoments& out) {
  MatrixStack query;
  if (recipe.key_objective == "qqt" || recipe.value_objective == "sst") query = query_moments(layer, backend).mean();
  MatrixStack key = recipe.key_objective == "qqt" ? query : plain_moments(layer, Side::kKey, backend).mean();
  MatrixStack value;
  if (recipe.value_objective == "sst") {
    value = score_weighted_value_moments(layer, query, backend).mean();
  } else if (recipe.value_objective == "oto") {
    value = output_moments(layer, backend).mean();
  } else {
    value = plain_moments(layer, Side::kValue, backend).mean();
  }
  out.key = of_heads_or_layer(std::move(key), recipe);
  out.value = of_heads_or_layer(std::move(value), recipe);
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
  require_one_of<2>(options.codec, "--codec", {"minmax", "lsq"});
  if (options.codec != "minmax" && options.target != "any") {
    throw UsageError("target " + options.target + " writes min/max codes", "--codec " + options.codec,
                     "use --target any, or --codec minmax");
  }
  if (options.codec == "lsq" && options.clip != "auto" && options.clip != "off") {
    throw UsageError("codec lsq takes no clip ratios", "--clip " + options.clip,
                     "leave --clip out, or use --codec minmax");
  }
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

LayerMoments take_moments(int layer_id, LayerStream& layer, const Recipe& recipe, const ReferenceRotation& reference,
                          Backend& backend) {
  QkvChunk chunk;
  layer.rewind();
  if (!layer.next(chunk)) throw DataError("no tokens", "layer " + std::to_string(layer_id), "dump again");
  LayerMoments out{layer_id, chunk.view.k.head_dim, chunk.view.v.head_dim, {}, {}, {}, {}};
  if (recipe.kind != Recipe::Kind::kHadamard) take_covariances(layer, recipe, backend, out);
  if (recipe.kind == Recipe::Kind::kResidual) {
    const auto residual = [&](Side side, const std::vector<std::pair<int, SideTransform>>& layers) {
      return of_heads_or_layer(residual_moments(layer, side, reference_of(layers, layer_id), backend).mean(), recipe);
    };
    out.key_residual = residual(Side::kKey, reference.key);
    out.value_residual = residual(Side::kValue, reference.value);
  }
  return out;
}

std::vector<LayerRotation> fit_rotations(const std::vector<LayerMoments>& layers, const Recipe& recipe,
                                         Backend& backend) {
  std::vector<const MatrixStack*> problems;
  for (const LayerMoments& layer : layers) {
    if (recipe.kind == Recipe::Kind::kHadamard) break;
    problems.insert(problems.end(), {&layer.key, &layer.value});
    if (recipe.kind == Recipe::Kind::kResidual) {
      problems.insert(problems.end(), {&layer.key_residual, &layer.value_residual});
    }
  }
  const std::vector<std::vector<Spectrum>> spectra = decompose(problems, backend);
  const std::size_t stride = layers.empty() ? 0 : spectra.size() / layers.size();
  const Composition composition = composition_from_name(recipe.composition);
  std::vector<LayerRotation> fitted;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto side = [&](int dim, const MatrixStack& covariance, std::size_t which) {
      if (recipe.kind == Recipe::Kind::kHadamard) return hadamard_side(dim);
      const std::vector<Spectrum>& own = spectra[i * stride + which];
      return transform_from(covariance, own,
                            recipe.kind == Recipe::Kind::kSpectral
                                ? compose(own, composition)
                                : residual_rotation(spectra[i * stride + which + 2], own));
    };
    fitted.push_back(
        {layers[i].layer_id, side(layers[i].key_dim, layers[i].key, 0), side(layers[i].value_dim, layers[i].value, 1)});
  }
  return fitted;
}

}  // namespace oscar
