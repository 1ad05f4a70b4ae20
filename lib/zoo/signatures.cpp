// SPDX-License-Identifier: MIT
#include "zoo/signatures.hpp"

#include <openssl/evp.h>
#include <openssl/pem.h>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"

namespace oscar {
namespace {

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

std::string to_base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

bool is_signature_for(const std::string& signature_json, const std::string& manifest_sha256) {
  const Json document = parse_json(signature_json, kSignatureName);
  return text_member(document, "schema") == kSchema && text_member(document, "manifest_sha256") == manifest_sha256;
}

PublicKey read_public_key(const std::filesystem::path& path) { return public_part(read_key(path, false)); }

std::string sign_manifest(std::string_view manifest, const std::filesystem::path& private_key,
                          const std::string& existing) {
  const Key key = read_key(private_key, true);
  Bytes signature(kSignatureBytes);
  std::size_t size = signature.size();
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  OSCAR_CHECK(context != nullptr && EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
              EVP_DigestSign(context.get(), signature.data(), &size,
                             reinterpret_cast<const unsigned char*>(manifest.data()), manifest.size()) == 1);
  const std::string digest = sha256_hex(manifest), own = public_part(key).base64;
  Json signatures = Json::array();
  // The signatures of a document about other bytes are worth nothing here.
  if (!existing.empty() && is_signature_for(existing, digest)) {
    for (const Json& other : parse_json(existing, kSignatureName).value("signatures", Json::array())) {
      if (text_member(other, "key") != own) signatures.push_back(other);
    }
  }
  signatures.push_back({{"key", own}, {"signature", to_base64(signature)}});
  const Json document{{"schema", kSchema}, {"manifest_sha256", digest}, {"signatures", std::move(signatures)}};
  return document.dump(1) + "\n";
}

std::vector<PublicKey> check_signatures(std::string_view manifest, const std::string& signature_json,
                                        const std::string& where) {
  const auto refuse = [&](const std::string& what) {
    throw DataError(what, where, "do not use the set; tell who hosts the zoo");
  };
  const Json document = parse_json(signature_json, where);
  validate_json(document, kSchema, where);
  if (text_member(document, "manifest_sha256") != sha256_hex(manifest)) refuse("the signature is of another manifest");
  std::vector<PublicKey> keys;
  for (const Json& entry : document.at("signatures")) {
    const std::string key = text_member(entry, "key");
    const Bytes raw = from_base64(key, kKeyBytes);
    const Bytes signature = from_base64(text_member(entry, "signature"), kSignatureBytes);
    if (raw.empty() || signature.empty() || !is_signature_of(manifest, raw, signature)) {
      refuse("a signature of the manifest is wrong");
    }
    keys.push_back({key});
  }
  return keys;
}

}  // namespace oscar
