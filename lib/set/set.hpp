// SPDX-License-Identifier: MIT
// The product: one set of a model, with the part that each server reads. A folder of files (set/set_folder.hpp):
//   manifest.json        oscar.set.v1: what the set is of, its parts, who reads which, and the hash of every other file
//   coded.safetensors    part "coded": bases and formats of the coded cache (set/coded_part.hpp)
//   k_rotation_*.pt …    part "rotations": one rotation a layer and side, which every tree reads (set/formats.hpp):
//                        how keys and values are transformed before they are quantised to 2 bits
//   with_means/          part "with_means": transforms with read sides and mean keys, for trees of format version 3
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "kernels/types.hpp"
#include "model/config/identity.hpp"
#include "set/coded_part.hpp"
#include "tensor/tensor.hpp"

namespace oscar {

/// The transform of the keys, or of the values, of one layer, and what it was made from. Its numbers are exact in
/// float32.
struct SideTransform : Transform {
  std::vector<double> eigenvalues;       // (rotation.count, dim), ascending; empty: not known
  MatrixStack covariance;                // what was decomposed, rounded to float32; count 0: not known
  MatrixStack query_covariance;          // of a stretch: what `covariance`, then of keys, was weighed against
  double clip_ratio = 0;                 // RowCodec::clip_ratio; <= 0: no clipping
  std::vector<double> head_clip_ratios;  // HistoryCodec::head_clip_ratios: of the KV heads, where they differ
  Json scores = Json::object();          // what the fit measured for this side; recorded, not interpreted

  /// `codec` with this side's clip ratios.
  [[nodiscard]] HistoryCodec clipped(RowCodec codec) const {
    codec.clip_ratio = clip_ratio;
    return {codec, head_clip_ratios};
  }
};

/// Layer ids are below this: they decide how long a server's table of clip ratios is.
inline constexpr int kMostLayers = 100'000;

struct LayerRotation {
  int layer_id = 0;
  SideTransform key, value;
};

struct RotationPart {
  /// Objectives as the .pt files name them: "<objective>_<composition>", "hadamard" or "uresidual".
  std::string key_objective, value_objective;
  /// Ascending by layer_id, possibly sparse.
  std::vector<LayerRotation> layers;

  ModelIdentity model;
  CalibrationData calibration;
  Windows windows;
  RowCodec key_codec, value_codec;  // grid, levels and group size; the clip ratios are per layer and side
  /// True if the clip ratios are known: they are not in a bare .pt file.
  bool has_clip_ratios = false;
  /// The one ratio per side for servers that take no table.
  double key_clip_scalar = 0, value_clip_scalar = 0;
  /// Of latent rows, which MLA models cache in the place of keys and values: made of a folder with a file per layer.
  bool latent = false;
  /// The recipe with every option, scores, timings …: recorded as given, not interpreted.
  Json recipe = Json::object();
};

inline constexpr const char* kSetSchema = "oscar.set.v1";
// The names of parts, in manifests, reports and errors.
inline constexpr const char* kCodedName = "coded";
inline constexpr const char* kRotationsName = "rotations";
inline constexpr const char* kWithMeansName = "with_means";
/// The format in Set::origin of RotationPart::latent.
inline constexpr const char* kLatentFormat = "mla";

/// At least one part. All parts are of the same model, data and windows, which each of them repeats.
struct Set {
  ModelIdentity model;
  CalibrationData calibration;
  Windows windows;
  Json recipe = Json::object();  // the name of what was asked for; each part has its own
  std::optional<CodedPart> coded;
  /// By their names, kRotationsName or kWithMeansName.
  std::map<std::string, RotationPart> rotations;
  /// The readers that it was fitted for; of a set of others, or one that limits nobody, all.
  std::vector<std::string> readers;
  /// The summary of verify; null until verified.
  Json verification;
  /// Of a set that was made of files of others: {"format", "files": [{"path", "sha256", "size"}], "unknown": [names of
  /// what the files do not tell]}, and "source", where they were fetched; else null.
  Json origin;
  /// The whole manifest this was read from; null for bare files of others and for a set not yet written.
  Json manifest;
};

/// The set of this one part, for all readers. Verification, origin and manifest are null.
[[nodiscard]] Set set_of(RotationPart part, const std::string& name = kRotationsName);
[[nodiscard]] Set set_of(CodedPart part);
/// Returns the names of the parts that are there.
[[nodiscard]] std::vector<std::string> part_names(const Set& set);
/// Returns the folder of a part's files in that of the set: "" or "with_means/".
[[nodiscard]] inline std::string folder_of_part(const std::string& name) {
  return name == kWithMeansName ? name + "/" : "";
}

/// A server or library, and what it can read.
struct Reader {
  std::string name;
  bool coded = false;      // the coded cache, and nothing else; others read rotations
  bool lloyd_max = false;  // of rotations, codec lloyd-max, of whole clipped heads
  /// Of rotations, mean keys, read sides of their own, one matrix per KV head, and one clip ratio of keys per KV head.
  bool newer = false;
};
/// Returns vllm, transformers, sglang (trees that read format version 3), sglang-v1 and llamacpp.
[[nodiscard]] const std::vector<Reader>& readers();
/// Returns their names in that order. rotations_only: of those that read no coded cache.
[[nodiscard]] std::vector<std::string> reader_names(bool rotations_only = false);
/// Throws UsageError that lists the names. option: what asked for it.
[[nodiscard]] const Reader& reader_from_name(const std::string& name, const std::string& option);

/// Returns what rotations need that the reader cannot read, as "one rotation per head"; empty if it can read them.
[[nodiscard]] std::string beyond_reader(const Reader& reader, const RotationPart& rotations);

/// Returns the name of the part that the reader takes: the coded cache; or the rotations with means, else those
/// without, whichever is there and it can read. Empty if there is none.
[[nodiscard]] std::string part_of_reader(const Set& set, const Reader& reader);
/// Returns that of every reader of Set::readers that has one.
[[nodiscard]] std::map<std::string, std::string> parts_of_readers(const Set& set);
/// Returns the names of those who read the part.
[[nodiscard]] std::vector<std::string> readers_of_part(const Set& set, const std::string& part);

}  // namespace oscar
