// SPDX-License-Identifier: MIT
// Ed25519 signatures (RFC 8032) over the exact bytes of a set's manifest, which names every file by its sha256.
// signature.json lies beside manifest.json: {"schema": "oscar.signature.v1", "manifest_sha256", "signatures":
// [{"key": public key, "signature"}]}, both in base64. Keys are PEM files, as "openssl genpkey -algorithm ed25519" and
// "openssl pkey -pubout" write them. Non-goals: certificates, expiry, revocation.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

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

/// True if signature.json is about the manifest with this hash, whether its signatures are good or not.
[[nodiscard]] bool is_signature_for(const std::string& signature_json, const std::string& manifest_sha256);

/// The text of signature.json for these bytes: the signatures of `existing` (which may be empty) that belong to the
/// same bytes, and one more by the private key in this PEM file. Throws DataError: no such key, or it is encrypted.
[[nodiscard]] std::string sign_manifest(std::string_view manifest, const std::filesystem::path& private_key,
                                        const std::string& existing);

/// The keys whose signatures in `signature_json` are good for these bytes. Throws DataError if the document is
/// malformed, belongs to other bytes, or has a signature that is wrong.
[[nodiscard]] std::vector<PublicKey> check_signatures(std::string_view manifest, const std::string& signature_json,
                                                      const std::string& where);

}  // namespace oscar
