// SPDX-License-Identifier: MIT
#include "zoo/pinned.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "zoo/index.hpp"
#include "zoo/name.hpp"
#include "zoo/signatures.hpp"

namespace oscar {
namespace {

/// Whether `zoo` has an index with a set at this path below it.
bool names(const fs::path& zoo, const std::string& path) {
  std::error_code error;
  const fs::path file = zoo / kIndexName;
  if (!fs::is_regular_file(file, error)) return false;
  try {
    const ZooIndex index(read_text(file), file.string());
    const auto entries = index.entries();
    return std::any_of(entries.begin(), entries.end(), [&](const ZooEntry& entry) { return entry.path == path; });
  } catch (const Error&) {
    return false;  // no index of ours
  }
}

}  // namespace

std::string why_pinned(const fs::path& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (error) return "";
  if (fs::exists(real / kSignatureName, error)) return "the manifest of this set is signed";
  if (is_sha256(real.filename().string())) return "this set lies in the cache, under the hash of its manifest";
  for (fs::path above = real.parent_path(); above != above.parent_path(); above = above.parent_path()) {
    if (names(above, real.lexically_relative(above).generic_string())) {
      return "the zoo in " + above.string() + " knows this set by the hash of its manifest";
    }
  }
  return "";
}

}  // namespace oscar
