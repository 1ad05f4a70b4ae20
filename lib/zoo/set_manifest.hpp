// SPDX-License-Identifier: MIT
// What a zoo needs to know of a set: its manifest's bytes, and the files that these list. The manifest's
// sha256 names the content: every file follows from it. Tensors are never opened here.
//
// Ed25519 signatures (RFC 8032) over the exact bytes of a set's manifest, which names every file by its sha256.
// signature.json lies beside manifest.json: {"schema": "oscar.signature.v1", "manifest_sha256", "signatures":
// [{"key": public key, "signature"}]}, both in base64. Keys are PEM files, as "openssl genpkey -algorithm ed25519" and
// "openssl pkey -pubout" write them. Non-goals: certificates, expiry, revocation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.hpp"

namespace oscar {

inline constexpr char kManifestName[] = "manifest.json";

struct FileDigest {
  std::string path;  // relative to the set's folder, safe
  std::string sha256;
  std::uint64_t size = 0;
  std::string git_oid;  // instead of sha256: SHA-1 of git's blob, which is all that the Hub tells of small files
};

struct SetManifest {
  std::string text;    // the exact bytes
  std::string sha256;  // of text
  Json document;
  std::vector<FileDigest> files;
  std::uint64_t total_size = 0;  // manifest and files
};

/// Parses the manifest of a set. Throws DataError: not a manifest of oscar.set.v1, or a file list with unsafe or
/// colliding paths.
[[nodiscard]] SetManifest parse_set_manifest(std::string text, const std::string& where);
/// Reads the manifest in a set's folder.
[[nodiscard]] SetManifest read_set_manifest(const std::filesystem::path& folder);

/// Returns what a manifest, or its summary in an index, says of each reader that is known: {"vllm": {"part": "coded",
/// "verdict": "accepted"}}, in the words of name_of().
[[nodiscard]] Json readers_of(const Json& document);
/// Whether one of these verdicts is "accepted".
[[nodiscard]] bool any_accepted(const Json& readers);
/// "vllm accepted, sglang not verified".
[[nodiscard]] std::string verdicts_text(const Json& readers);

/// The manifest of the set in `folder`, if it has this hash and its files are those that it lists.
[[nodiscard]] std::optional<SetManifest> find_set(const std::filesystem::path& folder,
                                                  const std::string& manifest_sha256);

inline constexpr char kSignatureName[] = "signature.json";

/// Standard base64, with padding.
[[nodiscard]] std::string to_base64(std::string_view bytes);

/// A public key: 32 bytes in base64, 44 characters.
struct PublicKey {
  std::string base64;
  friend bool operator==(const PublicKey&, const PublicKey&) = default;
};

/// Reads a public key from a PEM file with a public or private Ed25519 key. Throws DataError.
[[nodiscard]] PublicKey read_public_key(const std::filesystem::path& path);

/// Public keys, and each one's signature of a manifest, in base64.
using Signatures = std::vector<std::pair<std::string, std::string>>;

/// Those of a signature.json that are good for these bytes, and how many are not. A document about other bytes has
/// neither. Throws DataError if it is malformed.
struct FoundSignatures {
  Signatures good;
  int wrong = 0;
};
[[nodiscard]] FoundSignatures find_signatures(std::string_view manifest, const std::string& signature_json,
                                              const std::string& where);

/// A signature of these bytes by the private key in this PEM file. Throws DataError: no such key, or it is encrypted.
[[nodiscard]] Signatures::value_type sign_manifest(std::string_view manifest, const std::filesystem::path& private_key);

/// The text of signature.json for these bytes, with the first signature of each key; empty without any.
[[nodiscard]] std::string signature_text(std::string_view manifest, const Signatures& signatures);

/// The keys whose signatures in `signature_json` are good for these bytes. Throws DataError if the document is
/// malformed, belongs to other bytes, or has a signature that is wrong.
[[nodiscard]] std::vector<PublicKey> check_signatures(std::string_view manifest, const std::string& signature_json,
                                                      const std::string& where);

}  // namespace oscar
