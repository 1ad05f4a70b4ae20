// SPDX-License-Identifier: MIT
// The basis in which keys, or values, of the coded cache are stored: channels are uncorrelated there, and the error
// that attention makes is the plain sum of squared errors of channels (a Karhunen-Loeve transform in the metric of what
// reads). With A the metric and B the covariance,
//   A^1/2 B A^1/2 = E diag(lambda) E^T, lambda descending;   write side W = A^1/2 E, read side R = A^-1/2 E, W R^T = I
// Metrics and covariances are those of one KV head, over the history that is quantised.
//
// How many levels each channel of a coded cache gets. A channel of variance lambda with L levels costs log2 L bits and
// leaves an expected error of weight lambda D(L), where D(L) is what equal steps leave of a unit Gaussian, and errors
// of values that are alike in all rows count more (kAlikeError). Blocks of 8 neighbouring channels get the
// same number of levels. Codes of a head fill whole bytes of a page, so a budget pays for those. Of all ways to
// spend bits a head takes the one of least error plus price times cost, which is its bits and what its operands weigh
// in a decode kernel, at the least price that the budget allows (Shoham and Gersho, 1988); what is left of the budget
// goes to the steps that take away most error a bit.
//
// From rows and levels to the formats of one side of a coded layer. A grid is a channel's standard deviation sigma and
// the distance of its levels, step, chosen on calibration rows so that static grids fit rows whose scale the packed row
// carries (kernels/reference/coded_row.hpp).
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.hpp"
#include "kernels/rotary.hpp"
#include "kernels/types.hpp"
#include "set/set.hpp"

namespace oscar {

/// How much of what any text may ask for stands beside what errors cost on the calibration's: next to what the softmax
/// feels, and next to what a model's predictions feel.
inline constexpr double kPlainQueryPart = 0.3, kPlainCostPart = 0.1;
/// Added to a metric, as a part of its mean eigenvalue.
inline constexpr double kMetricFloor = 1e-4;

/// Rows whose errors a reader feels in ways of their own.
enum class CodedKind { kKey, kKeyBeforeRope, kValue };

struct CodedBasis {
  Transform transform;                // one pair of matrices per KV head; the mean of keys
  std::vector<double> lambda;         // (heads, d): variances of the channels, descending
  std::optional<Rotary> rotary = {};  // of keys before RoPE, whose matrices are block diagonal over its pairs
  CodedKind kind = CodedKind::kKey;   // of its rows
};

/// Returns the basis of keys. With m(X) the mean of X's diagonal,
/// A = m(C) (C / m(C) + plain_part C_Q / m(C_Q)) + kMetricFloor m(A) I.
///
/// cost is C: e C e^T is what an error e of a key costs, up to a factor. queries is C_Q, their second moment. Both are
/// (heads, d, d). fisher has the moments of the keys that are read: key / weight and key_sum / weight. centred: the
/// mean of these is subtracted from every key; else there is none, and the second moment stands in the place of the
/// covariance. Throws NumericalError if errors of a head cost nothing, if an entry is not finite or if keys do not
/// vary.
[[nodiscard]] CodedBasis coded_key_basis(const MatrixStack& cost, const MatrixStack& queries, double plain_part,
                                         const FisherSums& fisher, bool centred, Backend& backend);

/// Queries and keys are also `from` to `to` positions further apart than where a metric was taken. `part` of the metric
/// is its mean over these distances; the rest is as it was taken.
struct Distances {
  double from = 0, to = 0, part = 1;
};

/// Returns the basis of keys before RoPE, of each pair of channels that turn together alone, so that a reader needs no
/// product with a matrix between turning and the query. On each pair it is that of coded_key_basis(), with the plain
/// part's mean over both channels, and always centred: readers add the mean, turned, to what they decode. Fast pairs
/// are stored as they stand (turn_stored()), so that their metric and covariance are multiples of the identity.
/// What other pairs turn from the middle of a block of positions is left out of theirs. Throws NumericalError as
/// coded_key_basis() does.
///
/// cost: of errors of keys before RoPE. fisher: base_key and base_key_sum are read, and weight.
[[nodiscard]] CodedBasis coded_pair_basis(const MatrixStack& cost, const MatrixStack& queries, double plain_part,
                                          const FisherSums& fisher, const Rotary& rotary, Distances distances);

/// Returns the basis of values, with A = cost + (plain_part + kMetricFloor) m(cost) I and B = weighted m(plain) /
/// m(weighted).
///
/// cost: e cost e^T is what an error e of a value costs, up to a factor. weighted is sum_j (sum_q p_qj^2) v_j^T v_j,
/// and plain the mean of v_j^T v_j. All are (heads, d, d). Throws NumericalError if an entry is not finite or values
/// are all zero.
[[nodiscard]] CodedBasis coded_value_basis(const MatrixStack& cost, double plain_part, const MatrixStack& weighted,
                                           const MatrixStack& plain, Backend& backend);

/// Puts channel order[i] of each head in place i. order: (heads, d).
void reorder(CodedBasis& basis, std::span<const int> order);

/// Turns channels of equal levels among each other by Hadamard matrices, in pieces of powers of two, so that each is
/// nearly Gaussian. Levels: (heads, d), equal ones side by side; channels of one level stay. lambda keeps the variances
/// before the turn.
void mix_equal_levels(CodedBasis& basis, std::span<const int> levels);

/// What errors of values that are alike in neighbouring rows, and add up where attention adds rows up, cost more than
/// noise, which averages out. On Qwen2.5-Coder-1.5B more is better, at 32K tokens most of all, and 16 is 1 to 3 %
/// better than 8; on SmolLM2-135M 16 is 2 to 7 % worse.
inline constexpr double kAlikeError = 8;
/// Of keys whose channels without bits cost so many times their variance, the row of kCodedError.
constexpr std::array<double, 9> key_errors(double without_bits) {
  return {without_bits, .3634, .1188, .03744, .01154, .003495, .001040, .000304, .000088};
}
/// D(2^w) for w = 0 … 8 bits, by CodedKind: the least E e^2 + alike (E e y)^2 that equal steps leave of a unit Gaussian
/// y. Keys have no alike: what all of them lack moves all scores alike, which the softmax does not see. But what a key
/// lacks without a channel, which costs 1 as noise, its neighbours lack as well, unless they turn against each other.
inline constexpr std::array<std::array<double, 9>, 3> kCodedError{
    key_errors(3), key_errors(1.5),
    std::array{1 + kAlikeError, .5368, .1563, .04281, .01224, .003575, .001048, .000305, .000088}};
inline constexpr int kLevelBlock = 8;

/// Who shares one budget: all of the model, the keys and values of a layer, or those of one KV head.
enum class CodedScope { kModel, kLayer, kHead };
/// "model", "layer" or "head".
[[nodiscard]] std::string name_of(CodedScope scope);
/// Returns the scope of "model", "layer" or "head". Throws UsageError that lists the names.
[[nodiscard]] CodedScope coded_scope_from_name(const std::string& name);

/// The variances of one layer's keys, or values, in the basis that they are coded in.
struct CodedSpectrum {
  int layer = 0;
  CodedKind kind = CodedKind::kKey;
  int num_heads = 1, dim = 0;  // dim: a multiple of 8
  std::vector<double> lambda;  // (num_heads, dim), descending in each head
  double weight = 1;           // what an error of 1 costs the model
};

/// The levels of one CodedSpectrum, widest channels first.
struct CodedLevels {
  std::vector<int> levels;  // (num_heads, dim): 1, 2, 4, … 256, descending in each head
  std::vector<int> order;   // (num_heads, dim): channel i of the code is channel order[i] of the spectrum
};

/// What an operand (kernels/reference/coded_operands.hpp) of the keys, and of the values, weighs beside a bit of a
/// block. The time of a step of the decode kernel grows with its operands, and hardly with bytes
/// (tests/bench/decode_log.md). Twice as much was tried: it costs Qwen2.5-Coder 5 % more KLD at 2.25 bits, 2 % at 1.5.
inline constexpr std::array<double, 2> kOperandBits{0.25, 0.5};

/// Plans all spectra. bits: of one stored value, the two scale bytes of a row included, so that bits - 16 / dim are
/// spent on codes. Heads of 64 channels or more take whole bytes of strings, one at least; smaller ones, which no
/// kernel serves, one bit at least. Blocks without energy get nothing, but for the first of a head that has none.
/// Throws DataError that names the first layer, side and head whose budget is less than that, and UsageError if the
/// scales alone take all bits or no channel could take so many.
[[nodiscard]] std::vector<CodedLevels> plan_levels(std::span<const CodedSpectrum> spectra, double bits,
                                                   CodedScope scope);

/// What a head's code is expected to err, without its weight: the sum of lambda_i D(L_i). Both in the same order.
[[nodiscard]] double expected_error(std::span<const double> lambda, std::span<const int> levels, CodedKind kind);

/// The grids of one KV head's keys, or values.
struct CodedGrid {
  std::vector<float> sigma;  // (d): root mean square of the channel over all rows; 0 where it has one level
  std::vector<float> step;   // (d): distance of two levels at scale 1; 0 where it has one level
};

/// rows: (n, d) in coded coordinates. levels: (d). The step of a channel is the one of 51 factors around that of a
/// Gaussian for which sum w e^2 + alike (sum w e y)^2 / sum w y^2 is least, over the rows: y is a value over its
/// class's scale, w the square of that, and e the error. Few levels make values smaller than they are, and where rows
/// have a value in common, so have their errors: alike is what such errors cost more. Throws NumericalError that names
/// a channel which is constantly zero although it has levels.
[[nodiscard]] CodedGrid fit_grid(std::span<const float> rows, std::span<const int> levels, double alike);

/// Returns the side with these levels: channels are reordered, equal levels mixed (but those of keys before RoPE),
/// grids fitted to the rows, and all numbers rounded to float32. rows: of each KV head (n, d), in native coordinates;
/// of keys before RoPE, turned back. alike: as of fit_grid(). Throws NumericalError that names a channel with levels
/// which is constantly zero.
[[nodiscard]] CodedSide coded_side(CodedBasis basis, const std::vector<std::vector<float>>& rows,
                                   const CodedLevels& levels, double alike);

}  // namespace oscar
