// SPDX-License-Identifier: MIT
// A set of the coded cache: per layer and side the basis in which rows are stored, and per KV head the format of a
// packed row (kernels/reference/coded_row.hpp). It lies in a folder: manifest.json (oscar.rotation_set.v2), and
// coded.safetensors with, for layer N and side key or value,
//   layers.N.SIDE.write   (Hkv, d, d) float32: y = (x - mean) write
//   layers.N.SIDE.read    (Hkv, d, d) float32: q read, or o = o' read^T
//   layers.N.key.mean     (Hkv, d) float32; zeros: keys are not centred
//   layers.N.SIDE.levels  (Hkv, d) int32; .step, .sigma (Hkv, d) float32
//   layers.N.SIDE.lambda  (Hkv, d) float32: variances, for reports
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "kernels/types.hpp"
#include "model/config/identity.hpp"

namespace oscar {

/// The keys, or the values, of one layer. All numbers are exact in float32.
struct CodedSide {
  /// rotation is the write side and read_rotation the read side, (Hkv, d, d); keys have a mean, (Hkv, d).
  Transform transform;
  std::vector<CodedFormat> formats;  // of the KV heads
  std::vector<double> lambda;        // (Hkv, d): variances in the order of channels, before equal levels are mixed
  double damage = 0;                 // what its errors are expected to cost: of a model, nats of KL a token
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
  double bits = 0;                 // of one stored value, all counted, as it was asked for
  std::string scope;               // who shares one budget: "model", "layer" or "head"
  std::vector<CodedLayer> layers;  // ascending by layer_id
  /// The options and what was measured. Verify reads one of them: "context" tells that texts were spread over
  /// positions.
  Json recipe = Json::object();
  /// The summary of verify; null until verified.
  Json verification;
};

/// Bits of one stored value of one side, scale bytes counted: the mean over its heads.
[[nodiscard]] double bits_of(const CodedSide& side);
/// The mean over layers and sides, weighed by their channels.
[[nodiscard]] double bits_of(const CodedPart& set);

inline constexpr const char* kCodedSchema = "oscar.rotation_set.v2";

/// Whether a folder holds a coded set: it has a manifest that says so.
[[nodiscard]] bool is_coded_set(const std::filesystem::path& folder);

/// Writes the folder whole or not at all. replace: a folder that holds a set of ours and nothing else may be there.
void write_coded_set(const std::filesystem::path& folder, const CodedPart& set, bool replace);

/// Reads a coded set. Throws DataError: not a coded set, a manifest that does not fit its schema, files of other bytes
/// than the manifest lists, tensors that are missing, of another shape or not finite, or formats that cannot be packed.
[[nodiscard]] CodedPart read_coded_set(const std::filesystem::path& folder);

/// Throws DataError unless the folder holds a set of either kind, of rotations or of the coded cache, whose files are
/// whole and say one thing.
void require_sound_set_of_any_kind(const std::filesystem::path& folder);

}  // namespace oscar
