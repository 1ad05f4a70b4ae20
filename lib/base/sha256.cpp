// SPDX-License-Identifier: MIT
#include "base/sha256.hpp"

#include <openssl/evp.h>

#include <array>

#include "base/check.hpp"
#include "base/files.hpp"

namespace oscar {

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
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += {kDigits[digest[i] >> 4], kDigits[digest[i] & 15]};
  return text;
}

std::string sha256_hex(std::string_view text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text.data(), text.size())));
  return hash.hex();
}

std::string sha256_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  Sha256 hash;
  hash.update(file.bytes());
  return hash.hex();
}

}  // namespace oscar
