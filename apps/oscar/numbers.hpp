// SPDX-License-Identifier: MIT
// How numbers are written on a command line: counts as 30000 or 30k, sizes as 4G.
#pragma once

#include <CLI/CLI.hpp>

namespace oscar {

/// Finite numbers from 0 on, above 0, and any.
extern const CLI::Validator kNonNegative, kPositive, kFinite;

/// Writes "30k" out as 30000: k, M and G (or B) stand for thousands, millions and milliards; case does not count.
extern const CLI::Validator kCount;
/// Writes "10G" out in bytes: K, M, G and T (also KB, KiB …) are powers of 1024.
extern const CLI::Validator kSize;

/// Lets every option that takes a whole number take kCount's; after all options are added.
void take_counts(CLI::App& command);

}  // namespace oscar
