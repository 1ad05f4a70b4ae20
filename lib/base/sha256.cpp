// SPDX-License-Identifier: MIT
#include "base/sha256.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/status.hpp"

namespace oscar {
namespace {

std::string to_hex(std::span<const unsigned char> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

}  // namespace

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  OSCAR_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  OSCAR_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  OSCAR_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &size) == 1);
  return to_hex(std::span(digest).first(size));
}

std::string sha256_hex(std::string_view text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text.data(), text.size())));
  return hash.hex();
}

std::string sha256_file(const std::filesystem::path& path) {
  constexpr std::size_t kBlock = std::size_t{16} << 20U;
  const MappedFile file(path);
  Sha256 hash;
  for (std::span<const std::byte> rest = file.bytes(); !rest.empty();) {
    throw_if_interrupted();
    hash.update(rest.first(std::min(kBlock, rest.size())));
    rest = rest.subspan(std::min(kBlock, rest.size()));
  }
  return hash.hex();
}

std::string git_blob_sha1(std::string_view content) {
  const std::string text = "blob " + std::to_string(content.size()) + std::string(1, '\0') + std::string(content);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  OSCAR_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha1(), nullptr) == 1);
  return to_hex(std::span(digest).first(size));
}

}  // namespace oscar
