// SPDX-License-Identifier: MIT
// What is under test, and what the judge asks it: a rotation set of ours, foreign .pt files of both sides or of one, or
// a set of the coded cache.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "set/coded_part.hpp"
#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "moments/statistics.hpp"
#include "set/rotation_part.hpp"
#include "verify/report/report.hpp"

namespace oscar {
namespace verify {

struct Expectation;

/// Second moments of one layer of the data at hand, for one side of rotations.
struct DataCovariance {
  int layer_id = 0;
  std::string target;        // "key" or "value"
  MatrixStack covariance;    // one per KV head, by the side's objective
  bool same_tokens = false;  // the very tokens that the set was fitted on
  std::int64_t tokens = 0;
};

/// Moments of one layer of the data at hand, for a set of the coded cache; one matrix per KV head.
struct CodedMoments {
  int layer_id = 0;
  MatrixStack key, value;        // second moments
  std::vector<double> key_mean;  // (Hkv, d)
  /// What bases were made of, where the data are the very rows that the set was fitted to; else without matrices.
  MatrixStack key_covariance, value_covariance;
  std::int64_t tokens = 0;
};

/// What the data at hand tells of a set, of each kind what it can be held against.
struct DataMoments {
  std::vector<DataCovariance> covariances;
  std::vector<CodedMoments> coded;

  void add(DataMoments more);
};

}  // namespace verify

struct Subject {
  std::filesystem::path path;
  /// True for a folder with a manifest of ours.
  bool ours = false;
  /// What a reader of its figures should know.
  std::vector<std::string> caveats;

  virtual ~Subject() = default;
  // What it says of itself; empty where it does not.
  [[nodiscard]] virtual const ModelIdentity& model() const = 0;
  [[nodiscard]] virtual const CalibrationData& calibration() const = 0;
  [[nodiscard]] virtual Windows windows() const = 0;
  /// Fills what a report says of the set itself, and what people look at: spectra, clip ratios, bits of channels.
  virtual void describe(VerifyReport& report) const = 0;
  /// Its files say the same. Where they do not, there is nothing further to find out.
  virtual void check_files(std::vector<Check>& checks) const = 0;
  /// The set by itself, and against what is known of its model.
  virtual void check(const verify::Expectation& expected, std::vector<Check>& checks) const = 0;
  /// Whether arithmetic makes sense, and it fits the data, after these checks.
  [[nodiscard]] virtual bool measurable(const std::vector<Check>& checks) const = 0;
  /// The set as a method; none: only one side is there.
  [[nodiscard]] virtual std::optional<KvMethod> method(Windows windows) const = 0;
  /// Channels that share a scale in its row codec, for methods that have no groups of their own; 0: the whole row.
  [[nodiscard]] virtual int group_size() const = 0;
  /// What `tokens` tokens of a layer tell. Leaves the stream at its end.
  [[nodiscard]] virtual verify::DataMoments take(int layer, LayerStream& stream, bool same_tokens, std::int64_t tokens,
                                                 Backend& backend) const = 0;
  /// What saved sums tell; where they lack something a check says that it is unknown. Throws DataError if KV heads are
  /// missing.
  [[nodiscard]] virtual verify::DataMoments take(const Statistics& statistics, std::vector<Check>& checks) const = 0;
  virtual void check_on(const verify::DataMoments& data, std::vector<Check>& checks) const = 0;
  /// Bits of a code: 2 of INT2; of a coded set all bits of a value.
  [[nodiscard]] virtual double bits() const = 0;
  [[nodiscard]] virtual VerifyThresholds default_limits() const = 0;
};

/// Throws DataError as the readers of sets do; check_file_hashes() has compared the hashes.
[[nodiscard]] std::unique_ptr<Subject> open_subject(const std::filesystem::path& path);

/// Keys or values of all layers.
struct SubjectSide {
  std::string target;                                 // "key", "value", or empty if a lone file does not say
  std::string objective;                              // "qqt_r_h_pbr"
  std::vector<std::pair<int, SideTransform>> layers;  // ascending
};

struct RotationSubject : Subject {
  std::vector<SubjectSide> sides;
  /// What the manifest says; its layers are in the sides.
  RotationPart set;
  /// What the files of a folder of ours say differently (set/one_truth.hpp).
  std::vector<std::string> disagreements;

  [[nodiscard]] const ModelIdentity& model() const override { return set.model; }
  [[nodiscard]] const CalibrationData& calibration() const override { return set.calibration; }
  [[nodiscard]] Windows windows() const override { return set.windows; }
  void describe(VerifyReport& report) const override;
  void check_files(std::vector<Check>& checks) const override;
  void check(const verify::Expectation& expected, std::vector<Check>& checks) const override;
  [[nodiscard]] bool measurable(const std::vector<Check>& checks) const override;
  [[nodiscard]] std::optional<KvMethod> method(Windows windows) const override;
  [[nodiscard]] int group_size() const override { return set.key_codec.group_size; }
  [[nodiscard]] verify::DataMoments take(int layer, LayerStream& stream, bool same_tokens, std::int64_t tokens,
                                         Backend& backend) const override;
  [[nodiscard]] verify::DataMoments take(const Statistics& statistics, std::vector<Check>& checks) const override;
  void check_on(const verify::DataMoments& data, std::vector<Check>& checks) const override;
  [[nodiscard]] double bits() const override { return 2; }
  [[nodiscard]] VerifyThresholds default_limits() const override;
};

/// Throws DataError as read_rotation_set and read_rotation_pt do.
[[nodiscard]] RotationSubject read_rotations(const std::filesystem::path& path);
/// The set with its layers as the sides hold them, so that what is measured is what was checked; without covariances.
/// The sides must have the same layers.
[[nodiscard]] RotationPart set_of(const RotationSubject& subject);

/// A set of the coded cache. Throws DataError as read_coded_set does.
[[nodiscard]] std::unique_ptr<Subject> open_coded(const std::filesystem::path& path);

}  // namespace oscar
