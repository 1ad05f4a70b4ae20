// SPDX-License-Identifier: MIT
// The coded cache: per layer and side the basis in which rows are stored, and per KV head the format of a packed row
// (kernels/reference/coded_row.hpp). Of a set (set/set.hpp) it is the file coded.safetensors, which has for layer N and
// side key or value
//   layers.N.SIDE.write   (Hkv, d, d) float32: y = (x - mean) write
//   layers.N.key.mean     (Hkv, d) float32; zeros: keys after RoPE are not centred
// and of keys that are stored before RoPE, whose coordinates are of one pair of channels each, in the place of those
// matrices
//   layers.N.key.pair     (Hkv, d) int32: the pair (kernels/rotary.hpp) of coordinate c; each pair has two
//   layers.N.key.write    (Hkv, d, 2) float32: y_c = z_i write_c0 + z_j write_c1 of pair (i, j): see CodedSide::rotary
//   layers.N.SIDE.levels  (Hkv, d) int32; .step, .sigma (Hkv, d) float32
// The manifest says how pairs turn. Readers take queries times `read`, outputs o = o' read^T and rows x = y read^T +
// mean, where read = write^-T, computed in float64 and rounded to float32.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "kernels/rotary.hpp"
#include "kernels/types.hpp"
#include "model/config/identity.hpp"

namespace oscar {

/// The keys, or the values, of one layer. All numbers are exact in float32.
struct CodedSide {
  /// rotation is the write side and read_rotation the read side, (Hkv, d, d); keys have a mean, (Hkv, d).
  Transform transform;
  std::vector<CodedFormat> formats;  // of the KV heads
  /// Keys are stored before RoPE: y = z write, and readers have z = y read^T. Of a key k at position j, z is k - mean
  /// R(j) in fast pairs, and k R(-a) - mean in others, with a = turn_anchor(j) (kernels/rotary.hpp). Both matrices are
  /// block diagonal over pairs. Else nothing.
  std::optional<Rotary> rotary = {};
  double damage = 0;  // what its errors are expected to cost: of a model, nats of KL a token; only a fit knows it
};

struct CodedLayer {
  int layer_id = 0;
  CodedSide key, value;
};

/// What errors of one layer's keys, and of its values, cost.
struct CodedDamage {
  double key = 0, value = 0;
};

struct CodedPart {
  ModelIdentity model;
  CalibrationData calibration;
  Windows windows;
  std::string scope;               // who shares one budget: "model", "layer" or "head"
  std::vector<CodedLayer> layers;  // ascending by layer_id
  /// The options and what was measured. Verify reads one of them: "context" tells that texts were spread over
  /// positions.
  Json recipe = Json::object();
};

/// Returns the pair whose channels each coordinate of keys before RoPE is of, (Hkv, d). write: (Hkv, d, d), of row
/// vectors, zero between channels of different pairs.
[[nodiscard]] std::vector<int> pairs_of(const MatrixStack& write, const Rotary& rotary);
/// Bits of one stored value of one side, scale bytes counted: the mean over its heads.
[[nodiscard]] double bits_of(const CodedSide& side);
/// The mean over layers and sides, weighed by their channels.
[[nodiscard]] double bits_of(const CodedPart& part);

inline constexpr const char* kCodedFile = "coded.safetensors";

void write_coded_file(const std::filesystem::path& path, const CodedPart& part);
/// Fills the layers that `part` lists by their ids. Throws DataError for tensors that are missing, too many, of another
/// shape or not finite, and for formats that cannot be packed.
void fill_from_coded_file(const std::filesystem::path& path, CodedPart& part);

}  // namespace oscar
