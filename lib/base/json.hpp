// SPDX-License-Identifier: MIT
// JSON documents, and the schemas under schemas/ that every document of ours obeys. The schemas are compiled into the
// binary.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace oscar {

using Json = nlohmann::ordered_json;

/// Parses a file. Throws DataError with file, line and column.
[[nodiscard]] Json read_json(const std::filesystem::path& path);
/// Parses text; `where` names its origin in errors. Throws DataError for what is not JSON, a key that stands twice in
/// one object, and bytes after the end.
[[nodiscard]] Json parse_json(std::string_view text, const std::string& where);
/// Indented by one space, with a final newline; bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string json_text(const Json& document);
/// Writes json_text() atomically. Numbers that are not finite are refused (std::logic_error).
void write_json(const std::filesystem::path& path, const Json& document);
/// Checks `document` against the schema called `schema` (e.g. "oscar.set.v1") and against its own "schema"
/// member. Throws DataError naming the first member that does not fit.
void validate_json(const Json& document, const std::string& schema, const std::string& where);

/// Returns a member; null where `json`, which must outlive it, is no object, or has none of this name.
[[nodiscard]] const Json& member(const Json& json, const std::string& name);

/// Returns the names of the members in which two objects differ, "a, b"; "" if in none.
[[nodiscard]] std::string differences(const Json& one, const Json& other);

/// Text of a schema by its name, for example "oscar.dump.v1"; empty if there is none.
[[nodiscard]] std::string_view schema_source(std::string_view name);

}  // namespace oscar
