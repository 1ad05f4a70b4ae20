// SPDX-License-Identifier: MIT
#include "kernels/reference/coded_operands.hpp"

#include <algorithm>
#include <iterator>

namespace oscar::reference {
namespace {

/// The operands of one class, in the order of their pieces.
std::vector<CodedOperand> operands_of(const std::vector<CodedPart>& parts, int bytes, bool wide) {
  std::vector<CodedOperand> operands;
  for (int piece = -(bytes % 2); piece < bytes / 2; ++piece) {
    std::vector<const CodedPart*> found[2];
    for (const CodedPart& part : parts) {
      const int in_pieces = part.byte - bytes % 2;  // byte 0 of an odd number has a piece of its own
      const int its_piece = in_pieces < 0 ? -1 : in_pieces / 2;
      if (part.wide == wide && its_piece == piece) found[piece < 0 ? 0 : in_pieces % 2].push_back(&part);
    }
    for (std::size_t i = 0; i < std::max(found[0].size(), found[1].size()); ++i) {
      operands.push_back(
          {i < found[0].size() ? found[0][i] : nullptr, i < found[1].size() ? found[1][i] : nullptr, piece, wide});
    }
  }
  return operands;
}

int in_pairs(std::size_t operands) { return static_cast<int>((operands + 1) / 2 * 2); }

}  // namespace

std::array<std::vector<CodedOperand>, 4> key_operands(const std::vector<CodedPart>& parts, int bytes) {
  std::array<std::vector<CodedOperand>, 4> runs;
  for (const bool wide : {true, false}) {
    std::vector<CodedOperand>*const lower = &runs[wide ? 0 : 2], *const upper = lower + 1;
    for (const CodedOperand& operand : operands_of(parts, bytes, wide))
      (operand.upper() ? upper : lower)->push_back(operand);
    if (lower->size() % 2 == 1 && upper->size() % 2 == 1) lower->push_back(upper->back()), upper->pop_back();
  }
  return runs;
}

std::vector<CodedOperand> value_operands(const std::vector<CodedPart>& parts, int bytes) {
  std::vector<CodedOperand> operands = operands_of(parts, bytes, true), paired;
  std::ranges::copy(operands_of(parts, bytes, false), std::back_inserter(operands));
  std::ranges::stable_sort(operands, {}, &CodedOperand::piece);
  for (const CodedOperand& operand : operands) {
    if (paired.size() % 2 == 1 && operand.piece != paired.back().piece)
      paired.push_back({.piece = paired.back().piece, .wide = true});
    paired.push_back(operand);
  }
  return paired;
}

int count_operands(std::span<const std::uint8_t> bits, bool keys) {
  const std::vector<CodedPart> parts = parts_of(bits);
  const int bytes = bytes_of_string(bits);
  if (!keys) return in_pairs(value_operands(parts, bytes).size());
  int count = 0;
  for (const std::vector<CodedOperand>& run : key_operands(parts, bytes)) count += in_pairs(run.size());
  return count;
}

}  // namespace oscar::reference
