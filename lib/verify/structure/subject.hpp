// SPDX-License-Identifier: MIT
// What is under test, and what the judge asks it: the parts of a set, or a lone .pt file of one side. What all parts
// have in common is checked once for all (shared_checks.cpp); each kind adds what only it has.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "model/config/config.hpp"
#include "moments/statistics.hpp"
#include "set/formats.hpp"
#include "set/set.hpp"
#include "verify/report/report.hpp"

namespace oscar::verify {

/// Second moments of one layer of the data at hand, for rotations.
struct DataCovariance {
  int layer_id = 0;
  Moment moment = Moment::kQqt;
  MatrixStack covariance;    // one per KV head
  bool same_tokens = false;  // the very tokens that the set was fitted on
  std::int64_t tokens = 0;
};

/// Moments of one layer of the data at hand, for the coded cache; one matrix per KV head.
struct CodedMoments {
  int layer_id = 0;
  MatrixStack key, value;        // second moments
  std::vector<double> key_mean;  // (Hkv, d)
  /// What bases were made of, where the data are the very rows that the set was fitted to; else without matrices.
  MatrixStack key_covariance, value_covariance;
  std::int64_t tokens = 0;
};

/// What the data at hand tells of a set. Parts that need the same share it.
struct DataMoments {
  std::vector<DataCovariance> covariances;
  std::vector<CodedMoments> coded;

  void add(DataMoments more);
};

/// The keys, or the values, of one layer, as every kind of part has them. Refers to its part.
struct StoredSide {
  int layer_id = 0;
  std::string target;  // "key", "value", or empty if a lone file does not say
  const Transform& transform;
  std::vector<std::span<const double>> more;  // numbers beside the transform
};

/// One part of a set.
struct Subject {
  std::string name;  // kCodedName, kRotationsName or kWithMeansName
  /// What a reader of its figures should know.
  std::vector<std::string> caveats;

  Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  virtual ~Subject() = default;

  /// Both sides of all layers; of a lone file, one.
  [[nodiscard]] virtual std::vector<StoredSide> sides() const = 0;
  /// Whether one matrix may serve all KV heads of a layer.
  [[nodiscard]] virtual bool may_share_matrices() const = 0;
  /// Else readers take the inverse of the write side.
  [[nodiscard]] virtual bool stores_read_sides() const { return true; }
  /// Whether any of its matrices was made of data.
  [[nodiscard]] virtual bool made_of_data() const = 0;
  /// Says what it is, with the bits that choose its limits; adds what people look at: spectra, clip ratios, channels.
  virtual void describe(PartReport& part, VerifyReport& report) const = 0;
  /// What only this kind has.
  virtual void check_own(std::vector<Check>& /*checks*/) const {}
  /// What it says of the model, against the model itself.
  virtual void check_model(const ModelConfig& /*config*/, std::vector<Check>& /*checks*/) const {}
  /// The part as a method; none: only one side is there.
  [[nodiscard]] virtual std::optional<KvMethod> method(Windows windows) const = 0;
  /// Channels that share a scale in its row codec, for methods that have no groups of their own; 0: the whole row.
  [[nodiscard]] virtual int group_size() const { return 0; }
  /// Adds what this part needs of a layer and `found` does not have. Leaves the stream anywhere.
  virtual void take(int layer, LayerStream& stream, bool same_tokens, std::int64_t tokens, Backend& backend,
                    DataMoments& found) const = 0;
  /// The same of saved sums; where they lack something a check says that it is unknown. Throws DataError if KV heads
  /// are missing.
  virtual void take(const Statistics& statistics, DataMoments& found, std::vector<Check>& checks) const = 0;
  virtual void check_on(const DataMoments& data, std::vector<Check>& checks) const = 0;
};

[[nodiscard]] std::unique_ptr<Subject> make_subject(const std::string& name, RotationPart part);
[[nodiscard]] std::unique_ptr<Subject> make_subject(CodedPart part);
/// One side, as a lone file has it.
[[nodiscard]] std::unique_ptr<Subject> make_subject(const std::filesystem::path& path, RotationFile file);

/// A set before the judge.
struct SetUnderTest {
  // What it says of itself; empty where it does not.
  ModelIdentity model;
  CalibrationData calibration;
  Windows windows;
  Json manifest, verification;                  // Set's
  std::map<std::string, std::string> readers;   // who reads which part; nobody reads a lone file
  std::vector<std::unique_ptr<Subject>> parts;  // coded, rotations, with_means
  /// What the files of a folder of ours say differently (set/one_truth.hpp).
  std::vector<std::string> contradictions;
};

/// Reads a set's folder, or a lone .pt file. Throws DataError as read_set() and read_rotation_pt() do; hashes are left
/// to check_file_hashes().
[[nodiscard]] SetUnderTest open_set(const std::filesystem::path& path);
[[nodiscard]] SetUnderTest under_test(Set set);

}  // namespace oscar::verify
