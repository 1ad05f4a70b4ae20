// SPDX-License-Identifier: MIT
// Whether a set may be used: who must have signed its manifest, and who did. Given keys decide; without them, the keys
// that signed a model's sets when they were first pulled from a zoo are remembered, and others refused from then on.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "zoo/cache.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

struct TrustOptions {
  /// Refuse sets that are not signed, or not by who signed before.
  bool require_signature = false;
  /// PEM files with public Ed25519 keys: one of them must have signed. Implies require_signature.
  std::vector<std::filesystem::path> keys;

  [[nodiscard]] bool needed() const { return require_signature || !keys.empty(); }
};

/// Throws DataError unless `signature_json` shows that the manifest may be used. source: the zoo and the model, under
/// which keys are remembered in `cache`.
void require_trust(const TrustOptions& options, const SetManifest& manifest, const std::string& signature_json,
                   const std::string& source, const SetCache& cache, Status& status);

}  // namespace oscar
