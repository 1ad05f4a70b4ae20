// SPDX-License-Identifier: MIT
#include "remote/location.hpp"

#include <cstdlib>
#include <string_view>

#include "base/errors.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& what, const AskedFor& asked) {
  throw UsageError(what, asked.option, asked.remedy);
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string without_slashes(std::string text) {
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

StoreLocation folder_at(const std::string& path, const AskedFor& asked) {
  if (path.empty()) refuse("the folder's name is empty", asked);
  StoreLocation location;
  location.folder = fs::absolute(without_slashes(path)).lexically_normal();
  return location;
}

StoreLocation server_at(const std::string& scheme, std::string rest, const AskedFor& asked) {
  StoreLocation location;
  location.remote = true;
  // RFC 3986: user information ends at the last '@' before the path.
  if (const auto at = rest.substr(0, rest.find('/')).rfind('@'); at != std::string::npos) {
    location.credentials = percent_decoded(rest.substr(0, at), asked);
    rest = rest.substr(at + 1);
  }
  const std::string host = rest.substr(0, rest.find('/'));
  if (host.empty() || rest.find_first_of("?# \t\r\n\"<>\\") != std::string::npos) {
    refuse("not an address: " + scheme + "://" + rest, asked);
  }
  location.url = scheme + "://" + without_slashes(rest);
  return location;
}

}  // namespace

std::string environment(std::initializer_list<const char*> names, const std::string& otherwise) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return otherwise;
}

std::string percent_decoded(const std::string& text, const AskedFor& asked) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0 || high + low == 0)
      refuse("bad percent code in the address", asked) /* which may hold a password */;
    result += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return result;
}

StoreLocation parse_location(const std::string& text, const AskedFor& asked) {
  const auto mark = text.find("://");
  if (mark == std::string::npos) return folder_at(text, asked);
  const std::string scheme = text.substr(0, mark), rest = text.substr(mark + 3);
  if (scheme == "http" || scheme == "https") return server_at(scheme, rest, asked);
  if (scheme != "file") refuse("addresses at " + scheme + ":// are not supported", asked);
  const std::string path = rest.starts_with("localhost/") ? rest.substr(9) : rest;
  if (!path.starts_with('/')) refuse("file:// needs an absolute path", asked);
  return folder_at(percent_decoded(path, asked), asked);
}

}  // namespace oscar
