// SPDX-License-Identifier: MIT
// What is under test, and what the judge asks it: the parts of a set, or a lone .pt file of one side. What all parts
// have in common is checked once for all (shared_checks.cpp); each kind adds what only it has.
// Every check appends what it found; one that cannot be decided from what is given says so
// ("unknown") and never counts as passed. Limits stand here and nowhere else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
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
  std::int64_t head_clip_ratios = 0;          // their number
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
  Json manifest;                                // Set's
  std::map<std::string, std::string> readers;   // who reads which part; nobody reads a lone file
  std::vector<std::unique_ptr<Subject>> parts;  // coded, rotations, with_means
  /// What the files of a folder of ours say differently (set/set_folder.hpp).
  std::vector<std::string> contradictions;
};

/// Reads a set's folder, or a lone .pt file. Throws DataError as read_set() and read_rotation_pt() do; hashes are left
/// to check_file_hashes().
[[nodiscard]] SetUnderTest open_set(const std::filesystem::path& path);
[[nodiscard]] SetUnderTest under_test(Set set);

/// max |R^T R - I| of the float32 matrices.
inline constexpr double kOrthogonalityLimit = 1e-5;
/// The limit of orthogonality after the cast to bfloat16: 2 * 2^-8, which rounding alone cannot exceed
/// (Cauchy-Schwarz). Published files: 0.002.
inline constexpr double kBf16OrthogonalityLimit = 0x1p-7;
/// |U^T Sigma U - Lambda| / |Lambda| (Frobenius) with the matrix that was decomposed, which is stored in float32.
inline constexpr double kDecompositionLimit = 1e-4;
/// 1 - rank correlation of diag(U^T Sigma U) with the order of the eigenvalues, with moments of other text. Measured:
/// below 0.02 for the right matrix and 1024 tokens, 0.3 for 256; above 0.5 for a swapped, transposed, foreign or
/// differently composed one.
inline constexpr double kDisorderLimit = 0.4;
/// Fewer tokens than this many head dimensions do not fail a set on other text.
inline constexpr int kMinTokensPerDim = 4;
/// A set fitted on fewer tokens than this many head dimensions has directions of chance (see kDisorderLimit: 0.3).
inline constexpr int kMinCalibrationTokensPerDim = 2;
/// |M A M - B| / |B| (Frobenius) of a stretch, with matrices stored in float32.
inline constexpr double kStretchLimit = 1e-3;
/// |U^T Sigma U - Lambda| / |Lambda| with moments of the same tokens, which may have been stored in another precision.
inline constexpr double kSameTokensLimit = 0.02;
/// How many octaves, as a weighed root mean square, stored coordinates may vary otherwise than a coded part says.
/// Measured on held-out text of the sample model: 0.02 to 0.5 for the right matrices if they were fitted on 2,048
/// tokens or more (to 0.9 on 512), 0.3 to 6 for those of another layer or side.
inline constexpr double kScaleLimit = 1;
/// The deviation from which on another matrix of the part tells that they were exchanged, if it is nearer by this
/// factor, and an exchange makes the product of both deviations as much smaller (by 1.1 at most for the right ones).
inline constexpr double kScaleDoubt = 0.5, kClearlyBetter = 1.5;
/// max |R - constant| for rotations that are made without data.
inline constexpr double kConstantLimit = 1e-6;
/// Eigenvalues may be below zero by this fraction of the largest, and count as zero below it.
inline constexpr double kEigenvalueTolerance = 1e-7;

// What all parts are held to (shared_checks.cpp).

/// What the set should cover; fields that are not known are empty or zero.
struct Expectation {
  ModelIdentity model;
  std::string origin;            // "config.json of --model", "the manifest", …; empty: nothing is known
  std::vector<int> data_layers;  // layers of the data that is measured on
  bool from_outside = false;     // a model or data is at hand, not the set alone

  struct HeadDims {
    int key = 0, value = 0;
  };
  /// Of the model's layers, where they are known; else those of `model` hold for all.
  std::map<int, HeadDims> dims = {};
};

/// A check that fails, with this message, if the value is above the limit or no number.
[[nodiscard]] Check at_most(double limit, double value, const std::string& name, std::optional<int> layer,
                            const std::string& target, const std::string& message);
/// Variances (heads, dim) over the largest, descending, mean over heads; empty if there is nothing to see.
[[nodiscard]] std::vector<double> mean_spectrum(std::span<const double> variances, int dim);

/// Sizes and SHA-256 of the files that a folder's manifest lists. Runs before the set is read, on the folder itself.
void check_file_hashes(const std::filesystem::path& path, std::vector<Check>& checks);
/// The set was fitted for the model that it is measured on, and on enough tokens.
void check_provenance(const SetUnderTest& set, const Expectation& expected, std::vector<Check>& checks);
/// Layers and shapes against the model and the data; finite numbers; the read side undoes the write side, as stored and
/// after the cast to bfloat16.
void check_shared(const Subject& subject, const Expectation& expected, std::vector<Check>& checks);
/// Whether arithmetic makes sense, and the part fits the data, after check_shared().
[[nodiscard]] bool measurable(const std::vector<Check>& checks);

// What rotations are held to (rotation_subject.cpp, shared_checks.cpp, decomposition.cpp).

struct LayerSide {
  int layer_id = 0;
  const SideTransform& transform;
};

/// Keys or values of all layers. Refers to the part, or to the file, that has them.
struct RotationSide {
  std::string target;             // "key", "value", or empty if a lone file does not say
  std::string objective;          // "qqt_r_h_pbr"
  std::vector<LayerSide> layers;  // ascending
};
/// Both sides, or that of a lone file.
using RotationSides = std::vector<RotationSide>;
[[nodiscard]] RotationSides sides_of(const RotationPart& part);

/// The loop that most checks of rotations are: every layer of every side, in parallel, results in order.
using SideCheck = std::function<void(const RotationSide& side, int layer_id, const SideTransform& transform,
                                     std::vector<Check>& checks)>;
void for_each_side(const RotationSides& sides, std::vector<Check>& checks, const SideCheck& check);

/// No matrix has been through fp8.
void check_fp8(const RotationSides& sides, std::vector<Check>& checks);
/// Eigenvalues: finite, ascending, not negative, not all equal (but for "hadamard"), at least half of them above zero.
void check_spectrum(const RotationSides& sides, std::vector<Check>& checks);
/// The metric of a stretch against the covariances of keys and queries that the set carries.
void check_stretch(const RotationSides& sides, std::vector<Check>& checks);
/// U^T Sigma U = Lambda with the covariance that the set carries (of a stretch: T^T A T); constant rotations against
/// their constant.
void check_decomposition(const RotationSides& sides, std::vector<Check>& checks);
/// U^T Sigma U with moments taken from data. Takes the place of a decomposition that the set itself left unknown.
void check_decomposition_on_data(const RotationSides& sides, const std::vector<DataCovariance>& data,
                                 std::vector<Check>& checks);

// Second moments of the data at hand (data_covariance.cpp), by the objective that a side names: what its eigenvectors
// should diagonalise.   qqt queries   ktk keys   sst values weighted by k C k^T   vtv values

/// Adds that of a layer, unless it is there; nothing for objectives that no second moment of the data explains
/// ("hadamard", "uresidual"). Leaves the stream at its end.
void take_covariance(int layer_id, const std::string& objective, LayerStream& layer, bool same_tokens,
                     std::int64_t tokens, Backend& backend, DataMoments& found);

/// Adds those of all layers that saved sums know; where they lack what the objective names, a check says that it is
/// unknown. fitted_sha256: of the data that the set was fitted on. Throws DataError if KV heads are missing.
void take_covariances(const RotationSide& side, const std::string& fitted_sha256, const Statistics& statistics,
                      DataMoments& found, std::vector<Check>& checks);

/// Moments of one layer for the coded cache. same_tokens: of the very tokens that the set was fitted on.
[[nodiscard]] CodedMoments coded_moments_of(int layer_id, LayerStream& layer, const CodedPart& part, bool same_tokens,
                                            Backend& backend);

/// Returns moments of the rows that statistics keep, of every layer that has keys as the part stores them; of others a
/// check says that it is unknown. Throws DataError if KV heads are missing.
[[nodiscard]] std::vector<CodedMoments> coded_moments_of(const Statistics& statistics, const CodedPart& part,
                                                         std::vector<Check>& checks);

/// What a report says of the sums that a set was held against.
[[nodiscard]] Json description_of(const Statistics& statistics);

// What the coded cache is held to (coded_subject.cpp).

/// Coordinates vary as the part says, and no other layer's matrix, nor the other side's, explains them better; of the
/// rows that it was fitted to, coordinates have no covariances but where equal levels were mixed.
void check_coded_on_data(const CodedPart& part, const std::vector<CodedMoments>& data, std::vector<Check>& checks);

}  // namespace oscar::verify
