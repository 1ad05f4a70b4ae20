// SPDX-License-Identifier: MIT
// The files of a dump: one tensor each, in one of three formats told apart by their suffix. A .pt file holds a bare
// tensor, a .h5 file the dataset /<what>, a .safetensors file the tensor <what>, where what is q, k, v or seq_lens.
// Payloads are contiguous in all three, so that readers can map them or read them at their offset.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "tensor/tensor.hpp"

namespace oscar {

/// The suffixes of chunks, in the order in which a folder is searched for them.
inline constexpr std::array<std::string_view, 3> kChunkSuffixes{".pt", ".h5", ".safetensors"};

/// "pt", "h5" or "safetensors" -> ".pt" …; throws UsageError that lists them.
[[nodiscard]] std::string chunk_suffix(std::string_view format);

/// Tells where the tensor of a chunk lies in its file, without reading the payload. Throws DataError: missing,
/// truncated, no such tensor, not contiguous (h5: chunked or compressed).
[[nodiscard]] TensorLocation locate_chunk(const std::filesystem::path& file, const std::string& what);
[[nodiscard]] Tensor read_chunk(const std::filesystem::path& file, const std::string& what);
/// Writes the tensor as a file of the format that the suffix names, atomically.
void write_chunk(const std::filesystem::path& file, const std::string& what, const Tensor& tensor);

}  // namespace oscar
