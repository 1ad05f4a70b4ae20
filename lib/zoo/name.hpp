// SPDX-License-Identifier: MIT
// Names of sets: ORG/MODEL, ORG/MODEL:TAG, or ORG/MODEL@sha256:HEX for one exact content. Case is kept.
// Each part has letters, digits, '.', '_' and '-', at most 96 of them, starts with a letter, a digit or '_', and has no
// "..": so a name is also a safe path. Non-goal: aliases.
#pragma once

#include <string>
#include <string_view>

namespace oscar {

/// The tag that a name without one means. Nothing moves it by itself: it is a tag like any other.
inline constexpr char kDefaultTag[] = "latest";

struct SetName {
  std::string model;            // "ORG/MODEL"
  std::string tag;              // empty if the content is given
  std::string manifest_sha256;  // empty if the tag is given

  /// Returns the name as the user would write it: "ORG/MODEL:TAG" or "ORG/MODEL@sha256:HEX".
  [[nodiscard]] std::string text() const;
};

/// Returns where publish puts a set in a zoo: "ORG/MODEL/TAG".
[[nodiscard]] std::string published_path(const SetName& name);

/// Parses the name of a set. Throws UsageError.
[[nodiscard]] SetName parse_set_name(const std::string& text);
/// True for "ORG/MODEL" as above.
[[nodiscard]] bool is_model_name(std::string_view text);
[[nodiscard]] bool is_tag(std::string_view text);
/// True for 64 lower-case hexadecimal digits.
[[nodiscard]] bool is_sha256(std::string_view text);

}  // namespace oscar
