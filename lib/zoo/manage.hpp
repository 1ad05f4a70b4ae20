// SPDX-License-Identifier: MIT
// What the keeper of a zoo in a folder does besides publishing. All of it happens under the zoo's lock.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.hpp"

namespace oscar {

/// Writes zoo/render.hpp's page; returns its path. out: empty = index.html in the zoo. Throws UsageError, DataError.
std::filesystem::path render_zoo_page(const std::string& zoo, const std::string& url, std::filesystem::path out);

/// Publishes the set `name` (ORG/MODEL:TAG or ORG/MODEL@sha256:HEX) once more, as ORG/MODEL:tag. Throws DataError if
/// there is no such set, UsageError if the tag stands for another one and force is not set.
void tag_set(const std::string& zoo, const std::string& name, const std::string& tag, bool force, Status& status);

/// Records why a set should not be used any more; pull warns. reason: empty = it may be used again.
void deprecate_set(const std::string& zoo, const std::string& name, const std::string& reason, Status& status);

}  // namespace oscar
