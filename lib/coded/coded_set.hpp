// SPDX-License-Identifier: MIT
// A set of the coded cache: per layer and side the basis in which rows are stored, and per KV head the format of a
// packed row (kernels/reference/coded_row.hpp). A value type; coded_set_file.hpp reads and writes it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "codec/kv_method.hpp"
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

struct CodedSet {
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
[[nodiscard]] double bits_of(const CodedSet& set);

/// The set as verify and the model's attention read it.
[[nodiscard]] KvMethod method_of_coded_set(const CodedSet& set, Windows windows);

}  // namespace oscar
