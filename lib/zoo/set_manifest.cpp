// SPDX-License-Identifier: MIT
#include "zoo/set_manifest.hpp"

#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "remote/transport.hpp"
#include "set/manifest.hpp"
#include "set/set.hpp"

namespace oscar {
namespace {

constexpr char kPublishAgain[] = "write the set with oscar fit and publish it again";

/// Paths that lead out of the folder or onto the manifest; "a" and "a", or "a" and "a/b": one of them could not be
/// written.
void refuse_paths(const std::vector<FileDigest>& files, const std::string& where) {
  std::set<std::string> names{kManifestName};
  for (const FileDigest& file : files) {
    const bool control = std::ranges::any_of(file.path, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    const std::string name = Json(file.path).dump(-1, ' ', true);
    if (!is_safe_relative_path(file.path) || control || file.path == kManifestName) {
      throw DataError("the file list has the unsafe path " + name, where, kPublishAgain);
    }
    if (!names.insert(file.path).second)
      throw DataError("the file list names " + name + " twice", where, kPublishAgain);
  }
  for (const FileDigest& file : files) {
    for (fs::path above = fs::path(file.path).parent_path(); !above.empty(); above = above.parent_path()) {
      if (!names.contains(above.string())) continue;
      throw DataError("the file list has " + above.string() + " as a file and as a folder", where, kPublishAgain);
    }
  }
}

constexpr char kSchema[] = "oscar.signature.v1";
constexpr std::size_t kKeyBytes = 32, kSignatureBytes = 64;

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;
using Bytes = std::vector<unsigned char>;

std::string to_base64(const Bytes& bytes) {
  return oscar::to_base64({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

/// Empty unless `text` is the base64 of `size` bytes.
Bytes from_base64(const std::string& text, std::size_t size) {
  Bytes bytes(text.size() / 4 * 3 + 3);
  const int count =
      EVP_DecodeBlock(bytes.data(), reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (text.size() != 4 * ((size + 2) / 3) || count < static_cast<int>(size)) return {};
  bytes.resize(size);
  return to_base64(bytes) == text ? bytes : Bytes{};
}

/// No passphrase is ever asked for: an encrypted key cannot be used.
int no_passphrase(char*, int, int, void*) { return -1; }

Key read_key(const std::filesystem::path& path, bool need_private) {
  const std::string text = read_text(path);
  const auto in_memory = [&] {
    return std::unique_ptr<BIO, int (*)(BIO*)>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free);
  };
  Key key(PEM_read_bio_PrivateKey(in_memory().get(), nullptr, &no_passphrase, nullptr), &EVP_PKEY_free);
  if (key == nullptr && !need_private) {
    key.reset(PEM_read_bio_PUBKEY(in_memory().get(), nullptr, &no_passphrase, nullptr));
  }
  if (key == nullptr || EVP_PKEY_get_id(key.get()) != EVP_PKEY_ED25519) {
    throw DataError(std::string("no ") + (need_private ? "private " : "") + "Ed25519 key without a passphrase",
                    path.string(), "make one: openssl genpkey -algorithm ed25519 -out key.pem");
  }
  return key;
}

PublicKey public_part(const Key& key) {
  Bytes raw(kKeyBytes);
  std::size_t size = raw.size();
  OSCAR_CHECK(EVP_PKEY_get_raw_public_key(key.get(), raw.data(), &size) == 1 && size == kKeyBytes);
  return {to_base64(raw)};
}

bool is_signature_of(std::string_view text, const Bytes& public_key, const Bytes& signature) {
  const Key key(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, public_key.data(), public_key.size()),
                &EVP_PKEY_free);
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  return key != nullptr && context != nullptr &&
         EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
         EVP_DigestVerify(context.get(), signature.data(), signature.size(),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size()) == 1;
}

std::string text_member(const Json& json, const char* name) {
  const Json value = member(json, name);
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace

SetManifest parse_set_manifest(std::string text, const std::string& where) {
  SetManifest manifest;
  manifest.document = parse_json(text, where);
  validate_json(manifest.document, kSetSchema, where);
  manifest.total_size = text.size();
  for (const Json& file : manifest.document["files"]) {
    if (!file["size"].is_number_unsigned()) throw DataError("a listed size is no whole number", where, kPublishAgain);
    manifest.files.push_back({file["path"], file["sha256"], file["size"], ""});
    const std::uint64_t room =
        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - manifest.total_size;
    if (manifest.files.back().size > room) throw DataError("the listed sizes are impossible", where, kPublishAgain);
    manifest.total_size += manifest.files.back().size;
  }
  if (manifest.files.empty()) throw DataError("the manifest lists no files", where, kPublishAgain);
  refuse_paths(manifest.files, where);
  manifest.sha256 = sha256_hex(text);
  manifest.text = std::move(text);
  return manifest;
}

Json readers_of(const Json& document) {
  Json found = Json::object();
  for (const Reader& reader : readers()) {
    const Json part = member(member(document, "readers"), reader.name);
    if (!part.is_string()) continue;
    found[reader.name] = {{"part", part}, {"verdict", name_of(recorded_verdict(document, reader.name))}};
  }
  return found;
}

bool any_accepted(const Json& readers) {
  return std::ranges::any_of(readers,
                             [](const Json& each) { return each.at("verdict") == name_of(Verdict::kAccepted); });
}

std::string verdicts_text(const Json& readers) {
  return joined(readers.items(), ", ", [](const auto& each) {
    return each.key() + " " + each.value().at("verdict").template get<std::string>();
  });
}

SetManifest read_set_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  std::error_code error;
  if (fs::is_regular_file(path, error) && file_size(path) > kMaxDocumentBytes) {
    throw DataError("too large for a manifest", path.string(), kPublishAgain);
  }
  return parse_set_manifest(read_text(path), path.string());
}

std::optional<SetManifest> find_set(const fs::path& folder, const std::string& manifest_sha256) {
  try {
    SetManifest manifest = read_set_manifest(folder);
    if (manifest.sha256 != manifest_sha256) return std::nullopt;
    check_listed_files(folder, manifest.document);
    std::set<fs::path> known{kManifestName, kSignatureName};
    for (const Json& file : manifest.document["files"]) known.insert(file["path"].get<std::string>());
    const std::vector<fs::path> found = list_files(folder);
    if (!std::ranges::all_of(found, [&](const fs::path& file) { return known.contains(file); })) return std::nullopt;
    return manifest;
  } catch (const Error&) {
    return std::nullopt;  // absent or damaged: the caller fetches it again
  }
}

std::string to_base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

PublicKey read_public_key(const std::filesystem::path& path) { return public_part(read_key(path, false)); }

Signatures::value_type sign_manifest(std::string_view manifest, const std::filesystem::path& private_key) {
  const Key key = read_key(private_key, true);
  Bytes signature(kSignatureBytes);
  std::size_t size = signature.size();
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  OSCAR_CHECK(context != nullptr && EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
              EVP_DigestSign(context.get(), signature.data(), &size,
                             reinterpret_cast<const unsigned char*>(manifest.data()), manifest.size()) == 1);
  return {public_part(key).base64, to_base64(signature)};
}

std::string signature_text(std::string_view manifest, const Signatures& signatures) {
  std::set<std::string> keys;
  Json listed = Json::array();
  for (const auto& [key, signature] : signatures) {
    if (keys.insert(key).second) listed.push_back({{"key", key}, {"signature", signature}});
  }
  if (keys.empty()) return "";
  return json_text({{"schema", kSchema}, {"manifest_sha256", sha256_hex(manifest)}, {"signatures", std::move(listed)}});
}

FoundSignatures find_signatures(std::string_view manifest, const std::string& signature_json,
                                const std::string& where) {
  const Json document = parse_json(signature_json, where);
  validate_json(document, kSchema, where);
  FoundSignatures found;
  if (text_member(document, "manifest_sha256") != sha256_hex(manifest)) return found;
  for (const Json& entry : document.at("signatures")) {
    const std::string key = text_member(entry, "key"), signature = text_member(entry, "signature");
    const Bytes raw = from_base64(key, kKeyBytes), bytes = from_base64(signature, kSignatureBytes);
    if (!raw.empty() && !bytes.empty() && is_signature_of(manifest, raw, bytes)) {
      found.good.emplace_back(key, signature);
    } else {
      ++found.wrong;
    }
  }
  return found;
}

std::vector<PublicKey> check_signatures(std::string_view manifest, const std::string& signature_json,
                                        const std::string& where) {
  const FoundSignatures found = find_signatures(manifest, signature_json, where);
  if (found.wrong > 0 || found.good.empty()) {
    throw DataError(found.wrong > 0 ? "a signature of the manifest is wrong" : "the signature is of another manifest",
                    where, "do not use the set; tell who hosts the zoo");
  }
  std::vector<PublicKey> keys;
  for (const auto& [key, signature] : found.good) keys.push_back({key});
  return keys;
}

}  // namespace oscar
