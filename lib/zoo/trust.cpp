// SPDX-License-Identifier: MIT
#include "zoo/trust.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "zoo/signatures.hpp"

namespace oscar {
namespace {

/// Keys that were remembered; a file that cannot be read is an error, not a reason to trust anybody.
std::vector<PublicKey> pinned(const fs::path& file) {
  std::vector<PublicKey> keys;
  if (!fs::exists(file)) return keys;
  const Json document = read_json(file);
  const Json list = document.is_object() ? document.value("keys", Json()) : Json();
  if (!list.is_array() || list.empty()) {
    throw DataError("the remembered keys cannot be read", file.string(), "remove this file to trust anew");
  }
  for (const Json& key : list) keys.push_back({key.is_string() ? key.get<std::string>() : ""});
  return keys;
}

bool any_of_these(const std::vector<PublicKey>& signers, const std::vector<PublicKey>& wanted) {
  return std::ranges::any_of(signers, [&](const PublicKey& key) { return std::ranges::count(wanted, key) > 0; });
}

std::string list(const std::vector<PublicKey>& keys) {
  std::string text;
  for (const PublicKey& key : keys) text += (text.empty() ? "" : ", ") + key.base64;
  return text;
}

}  // namespace

void require_trust(const TrustOptions& options, const SetManifest& manifest, const std::string& signature_json,
                   const std::string& source, const SetCache& cache, Status& status) {
  const std::vector<PublicKey> signers = check_signatures(manifest.text, signature_json, kSignatureName);
  std::vector<PublicKey> wanted;
  for (const fs::path& file : options.keys) wanted.push_back(read_public_key(file));
  if (!wanted.empty()) {
    if (any_of_these(signers, wanted)) return;
    throw DataError("the set is signed by " + list(signers) + ", not by a key that was given", source,
                    "do not use the set, or give its publisher's key with --key");
  }
  const fs::path file = cache.key_file(source);
  wanted = pinned(file);
  if (wanted.empty()) {
    Json keys = Json::array();
    for (const PublicKey& key : signers) keys.push_back(key.base64);
    write_json(file, {{"source", source}, {"keys", keys}});
    status.notice("from now on only sets of this model signed by " + list(signers) + " are accepted; " + file.string());
  } else if (!any_of_these(signers, wanted)) {
    throw DataError(
        "the set is signed by " + list(signers) + ", earlier ones by " + list(wanted), source,
        "ask the publisher; if the key was changed on purpose, give it with --key or remove " + file.string());
  }
}

}  // namespace oscar
