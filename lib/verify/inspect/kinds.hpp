// SPDX-License-Identifier: MIT
// One function per kind of file, and one for folders; inspect.cpp finds the kind. All throw DataError if the file is
// damaged.
#pragma once

#include "tensor/pt.hpp"
#include "verify/inspect/inspect.hpp"

namespace oscar {

/// A .pt archive: a rotation file of format v1, v2 or v3, a bare tensor, or something else.
[[nodiscard]] Inspection inspect_pt(const std::filesystem::path& path);
/// The rotation file in an archive, which has "format_version" and "layers".
[[nodiscard]] Inspection inspect_rotation_file(const PtValue& archive, const std::string& where);
/// An archive that is_codebook_file() (verify/codebook_file.hpp, which has the format).
[[nodiscard]] Inspection inspect_codebook_file(const PtValue& archive, const std::string& where);
[[nodiscard]] Inspection inspect_safetensors(const std::filesystem::path& path);
[[nodiscard]] Inspection inspect_npy(const std::filesystem::path& path);
[[nodiscard]] Inspection inspect_hdf5(const std::filesystem::path& path);
/// Header, metadata and tensor table; the payload is not decoded.
[[nodiscard]] Inspection inspect_gguf(const std::filesystem::path& path);
/// Any document of ours (schemas/), or a tokenizer.json.
[[nodiscard]] Inspection inspect_json(const std::filesystem::path& path);
/// A dump, a rotation set, bare rotation files (of both sides, or MLA's), a model or a zoo.
[[nodiscard]] Inspection inspect_folder(const std::filesystem::path& folder);

}  // namespace oscar
