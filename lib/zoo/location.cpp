// SPDX-License-Identifier: MIT
#include "zoo/location.hpp"

#include <cstdlib>
#include <optional>

#include "base/errors.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& what) {
  throw UsageError(what, "--zoo", "give a folder, file:///…, http://…, https://…, s3://… or hf://…");
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string percent_decoded(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0 || high + low == 0) refuse("bad percent code in \"" + text + "\"");
    result += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return result;
}

/// Both ends that people paste: "…/zoo/" and "…/zoo/index.json".
std::string without_index(std::string text) {
  constexpr std::string_view kIndex = "/index.json";
  if (text.ends_with(kIndex)) text.resize(text.size() - kIndex.size());
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

ZooLocation folder_at(const std::string& path) {
  if (path.empty()) refuse("the zoo's folder is empty");
  ZooLocation location;
  location.folder = fs::absolute(without_index(path)).lexically_normal();
  return location;
}

ZooLocation server_at(const std::string& scheme, std::string rest) {
  ZooLocation location;
  location.remote = true;
  // RFC 3986: user information ends at the last '@' before the path.
  if (const auto at = rest.substr(0, rest.find('/')).rfind('@'); at != std::string::npos) {
    location.credentials = percent_decoded(rest.substr(0, at));
    rest = rest.substr(at + 1);
  }
  const std::string host = rest.substr(0, rest.find('/'));
  if (host.empty() || rest.find_first_of("?# \t\r\n\"<>\\") != std::string::npos) {
    refuse("not an address of a zoo: " + scheme + "://" + rest);
  }
  location.url = scheme + "://" + without_index(rest);
  return location;
}

ZooLocation bucket_at(const std::string& rest) {
  const std::string region = environment({"AWS_REGION", "AWS_DEFAULT_REGION"}, "us-east-1");
  std::string endpoint =
      environment({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "https://s3." + region + ".amazonaws.com");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const auto mark = endpoint.find("://");
  if (mark == std::string::npos) refuse("not an address of an S3 store: " + endpoint);
  ZooLocation location = server_at(endpoint.substr(0, mark), endpoint.substr(mark + 3) + "/" + rest);
  const std::string key = environment({"AWS_ACCESS_KEY_ID"});
  if (key.empty()) return location;  // a public bucket can be read
  location.credentials = key + ":" + environment({"AWS_SECRET_ACCESS_KEY"});
  location.session_token = environment({"AWS_SESSION_TOKEN"});
  location.aws_sigv4 = "aws:amz:" + region + ":s3";
  return location;
}

}  // namespace

std::string environment(std::initializer_list<const char*> names, const std::string& otherwise) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return otherwise;
}

ZooLocation parse_zoo_location(const std::string& text) {
  const auto mark = text.find("://");
  if (mark == std::string::npos) return folder_at(text);
  const std::string scheme = text.substr(0, mark), rest = text.substr(mark + 3);
  if (scheme == "http" || scheme == "https") return server_at(scheme, rest);
  if (scheme == "s3") return bucket_at(rest);
  if (scheme != "file") refuse("zoos at " + scheme + ":// are not supported");
  const std::string path = rest.starts_with("localhost/") ? rest.substr(9) : rest;
  if (!path.starts_with('/')) refuse("file:// needs an absolute path");
  return folder_at(percent_decoded(path));
}

fs::path installed_zoo() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  for (const char* place : {"../share/oscar/zoo", "zoo"}) {
    fs::path candidate = (folder / place).lexically_normal();
    if (fs::exists(candidate / "index.json")) return candidate;
  }
  return {};
}

std::string default_zoo() {
  if (const std::string zoo = environment({"OSCAR_ZOO"}); !zoo.empty()) return zoo;
  const fs::path zoo = installed_zoo();
  if (zoo.empty()) throw UsageError("no zoo is installed with this oscar", "", "name one with --zoo, or set OSCAR_ZOO");
  return zoo.string();
}

}  // namespace oscar
