// SPDX-License-Identifier: MIT
#include "remote/hub.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "remote/curl_handle.hpp"

namespace oscar {
namespace {

constexpr std::string_view kHubScheme = "hf://";
constexpr std::string_view kDatasets = "datasets/";
constexpr char kPublicHub[] = "https://huggingface.co";

bool is_dataset(const std::string& path) { return path.starts_with(kDatasets); }

/// Plain http is for a hub on this machine.
bool may_see_token(const std::string& url) {
  return url.starts_with("https://") || url.starts_with("http://127.0.0.1:") || url.starts_with("http://localhost:") ||
         url.starts_with("http://[::1]:");
}

/// Where the hub's own client keeps the token of `hf auth login`.
std::filesystem::path token_file() {
  if (const std::string file = environment({"HF_TOKEN_PATH"}); !file.empty()) return file;
  if (const std::string home = environment({"HF_HOME"}); !home.empty()) return std::filesystem::path(home) / "token";
  const std::string home = environment({"HOME"});
  const std::string cache = environment({"XDG_CACHE_HOME"}, home.empty() ? "" : home + "/.cache");
  return cache.empty() ? "" : std::filesystem::path(cache) / "huggingface/token";
}

std::string hub_token() {
  if (const std::string token = environment({"HF_TOKEN"}); !token.empty()) return token;
  std::string token;
  std::ifstream(token_file()) >> token;  // one word; a file that is not there has none
  return token;
}

/// Repositories and folders end at the second '/', which is not the one behind "datasets".
std::size_t end_of_repository(const std::string& path) {
  const auto first = path.find('/', is_dataset(path) ? kDatasets.size() : 0);
  return first == std::string::npos ? path.size() : std::min(path.find('/', first + 1), path.size());
}

bool is_repository(const std::string& text) {
  const std::string name = is_dataset(text) ? text.substr(kDatasets.size()) : text;
  const auto slash = name.find('/');
  return slash != std::string::npos && is_plain_name(name.substr(0, slash)) && is_plain_name(name.substr(slash + 1));
}

std::string with_folder(const std::string& repository, const std::string& folder) {
  return folder.empty() ? repository : repository + "/" + folder;
}

}  // namespace

std::string HubAddress::text() const {
  return std::string(kHubScheme) + with_folder(repository, folder) + "@" + revision;
}

std::string HubAddress::place() const {
  return std::string(kHubScheme) + with_folder(repository + "@" + as_one_name(revision), folder);
}

bool is_hub_address(const std::string& text) { return text.starts_with(kHubScheme); }

HubAddress parse_hub_address(const std::string& text, const AskedFor& asked) {
  HubAddress address;
  std::string rest = text.substr(kHubScheme.size());
  if (const auto at = rest.find('@'); at < rest.find('/')) {  // it may be a token: the message does not show it
    throw UsageError("an address on the Hugging Face Hub has no '@' before ORG", asked.option,
                     asked.remedy + "; a token goes into HF_TOKEN");
  }
  if (const auto at = rest.rfind('@'); at != std::string::npos) {
    address.revision = rest.substr(at + 1);
    rest.resize(at);
  }
  while (rest.ends_with('/')) rest.pop_back();
  const auto end = end_of_repository(rest);
  address.repository = rest.substr(0, end);
  if (end < rest.size()) address.folder = rest.substr(end + 1);
  const bool good = is_repository(address.repository) &&
                    (address.folder.empty() || is_safe_relative_path(address.folder)) &&
                    is_safe_relative_path(address.revision);
  if (good) return address;
  throw UsageError("\"" + text + "\" is not an address on the Hugging Face Hub", asked.option, asked.remedy);
}

HubAddress hub_address_of_place(const std::string& place) {
  HubAddress address;
  const std::string rest = place.substr(kHubScheme.size());
  const auto end = end_of_repository(rest);
  const std::string pinned = rest.substr(0, end);
  const auto at = pinned.find('@');
  address.repository = pinned.substr(0, at);
  if (at != std::string::npos) address.revision = percent_decoded(pinned.substr(at + 1), {});
  if (end < rest.size()) address.folder = rest.substr(end + 1);
  return address;
}

std::string as_one_name(const std::string& revision) {
  std::string name = percent_encoded(revision);
  for (auto slash = name.find('/'); slash != std::string::npos; slash = name.find('/')) name.replace(slash, 1, "%2F");
  return name;
}

bool is_git_hash(const std::string& text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

StoreLocation hub_endpoint() {
  const std::string url = environment({"HF_ENDPOINT"}, kPublicHub);
  StoreLocation location = parse_location(url, {"HF_ENDPOINT", "give https://…"});
  if (!location.remote) throw UsageError("not an address of a hub: " + url, "HF_ENDPOINT", "give https://…");
  if (may_see_token(location.url)) location.bearer_token = hub_token();
  return location;
}

std::string hub_files(const HubAddress& address) { return address.repository + "/resolve/" + address.revision; }

std::string hub_api(const HubAddress& address) {
  return std::string("api/") + (is_dataset(address.repository) ? "" : "models/") + address.repository;
}

std::string hub_commit_path(const HubAddress& address) { return hub_api(address) + "/revision/" + address.revision; }

std::string commit_in(const Json& answer, const std::string& where) {
  const Json sha = answer.is_object() ? answer.value("sha", Json()) : Json();
  if (sha.is_string() && is_git_hash(sha.get<std::string>())) return sha;
  throw DataError("the hub did not tell a commit", where, "check HF_ENDPOINT");
}

}  // namespace oscar
