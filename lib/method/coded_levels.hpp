// SPDX-License-Identifier: MIT
// How many levels each channel of a coded cache gets. A channel of variance lambda with L levels costs log2 L bits and
// leaves an expected squared error of weight lambda D(L), where D(L) is the error of the best quantiser with L levels
// of a unit Gaussian, and kDroppedError for a channel that is not stored. Blocks of 8 neighbouring channels get the
// same number of levels. Codes of a head fill whole bytes of a page, so a budget pays for those. Of all ways to
// spend bits a head takes the one of least error plus price times cost, which is its bits and what its operands weigh
// in a decode kernel, at the least price that the budget allows (Shoham and Gersho, 1988); what is left of the budget
// goes to the steps that take away most error a bit.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace oscar {

/// What a channel without bits costs, as a multiple of its variance. Errors of quantisers are noise, which averages out
/// over the rows that attention adds up; what a dropped channel lacks is alike in neighbouring rows and adds up. On two
/// models that made 2.6 times the cost by channel and 4.5 times that of all together; plans for 2 to 4 differ little.
inline constexpr double kDroppedError = 3;
/// D(2^w) for w = 0 … 8 bits.
inline constexpr std::array<double, 9> kCodedError{kDroppedError, .3634,   .1175,   .03454,  .009497,
                                                   .002499,       .000644, .000164, .0000413};
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
  std::string side;            // "key" or "value": how operands are counted, and for errors
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
/// (tests/bench/decode_log.md). Twice as much was tried: it costs plans of 2.25 bits 1.5 % more error, of 1.5 bits 3 %.
inline constexpr std::array<double, 2> kOperandBits{0.25, 0.5};

/// Plans all spectra. bits: of one stored value, the two scale bytes of a row included, so that bits - 16 / dim are
/// spent on codes. Heads of 64 channels or more take whole bytes of strings, one at least; smaller ones, which no
/// kernel serves, one bit at least. Blocks without energy get nothing, but for the first of a head that has none.
/// Throws DataError that names the first layer, side and head whose budget is less than that, and UsageError if the
/// scales alone take all bits or no channel could take so many.
[[nodiscard]] std::vector<CodedLevels> plan_levels(std::span<const CodedSpectrum> spectra, double bits,
                                                   CodedScope scope);

/// The expected squared error of a head's code, without its weight: the sum of lambda_i D(L_i). Both in the same order.
[[nodiscard]] double expected_error(std::span<const double> lambda, std::span<const int> levels);

}  // namespace oscar
