// SPDX-License-Identifier: MIT
// Says what a file or folder is, and whether it is sound, without knowing where it came from. Files are told apart by
// their first bytes and folders by what lies in them, never by their names alone. Non-goals: judging quality (verify
// does), repairing, converting.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "verify/structure/subject.hpp"

namespace oscar {

struct Inspection {
  /// "rotation file (.pt)", "dump", "safetensors file" …
  std::string kind;
  /// What was found, most important first: strings, numbers, lists, and objects of those.
  Json facts = Json::object();
  /// Where it is not what it says it is; empty: sound as far as it can be told.
  std::vector<std::string> problems;
};

/// Throws DataError if there is nothing, if nobody knows what it is, or if it cannot be read to its end.
[[nodiscard]] Inspection inspect(const std::filesystem::path& path);

/// Throws DataError with the first problem, if there is one.
void require_sound(const Inspection& found, const std::filesystem::path& path);
/// The same for who takes a stranger's set in: it is held to what inspect() and verify hold it to.
void require_sound_set(const std::filesystem::path& folder);

/// {"path", "kind", "sound", "problems", "facts"}.
[[nodiscard]] Json to_json(const Inspection& inspection, const std::filesystem::path& path);

/// Lines for people: the kind, then one fact a line.
[[nodiscard]] std::string to_text(const Inspection& inspection, const std::filesystem::path& path);

// Kinds with a file of their own; all throw DataError if something is damaged.

/// A file of statistics; or the moments that a rank of a server kept, or all ranks in a folder.
[[nodiscard]] Inspection inspect_statistics(const std::filesystem::path& path);
/// A .pt archive: a rotation file of format v1, v2 or v3, what a server kept of its calibration, a bare tensor, or
/// something else.
[[nodiscard]] Inspection inspect_pt(const std::filesystem::path& path);
/// A dump, a set, bare rotation files (of both sides, or MLA's) and what a server kept beside them, a model or a zoo.
[[nodiscard]] Inspection inspect_folder(const std::filesystem::path& folder);

/// The structure checks of verify that need nothing but the part and what its set says of the model.
[[nodiscard]] std::vector<Check> structure_of(const verify::Subject& subject, const verify::Expectation& expected);
/// What failed, in words.
[[nodiscard]] std::vector<std::string> problems_of(const std::vector<Check>& checks);

}  // namespace oscar
