// SPDX-License-Identifier: MIT
#include "verify/report/record.hpp"

#include "coded/coded_set.hpp"
#include "rotation/manifest.hpp"

namespace oscar {

void record_verification(const std::filesystem::path& folder, const Json& summary) {
  const std::filesystem::path path = folder / "manifest.json";
  Json manifest = read_json(path);
  const char* const schema = is_coded_set(folder) ? kCodedSchema : "oscar.rotation_set.v1";
  validate_json(manifest, schema, path.string());
  check_listed_files(folder, manifest);
  manifest["verification"] = summary;
  validate_json(manifest, schema, path.string());
  write_json(path, manifest);
}

}  // namespace oscar
