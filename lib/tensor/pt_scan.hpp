// SPDX-License-Identifier: MIT
// A walk over the opcodes of a pickle before libtorch sees it: libtorch makes room for as many bytes as a string claims
// to have before it looks how many there are. Non-goal: checking what the opcodes do.
#pragma once

#include <span>
#include <string>

namespace oscar {

/// Throws DataError if an argument reaches beyond the pickle, or an opcode is none that torch.save writes.
void check_pickle_lengths(std::span<const char> pickle, const std::string& where);

}  // namespace oscar
