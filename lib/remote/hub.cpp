// SPDX-License-Identifier: MIT
#include "remote/hub.hpp"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "remote/fetch.hpp"
#include "remote/transport.hpp"

namespace oscar {
namespace {

constexpr std::string_view kHubScheme = "hf://";
constexpr std::string_view kDatasets = "datasets/";
constexpr char kPublicHub[] = "https://huggingface.co";

bool is_dataset(const std::string& path) { return path.starts_with(kDatasets); }

/// Where the hub's own client keeps the token of `hf auth login`.
std::filesystem::path token_file() {
  if (const std::string file = environment("HF_TOKEN_PATH"); !file.empty()) return file;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return std::filesystem::path(home) / "token";
  const std::string home = environment("HOME");
  const std::string cache = environment("XDG_CACHE_HOME", home.empty() ? "" : home + "/.cache");
  return cache.empty() ? "" : std::filesystem::path(cache) / "huggingface/token";
}

std::string hub_token() {
  if (const std::string token = environment("HF_TOKEN"); !token.empty()) return token;
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

/// Hubs answer so for what is not there, too, where nobody has said who asks.
[[noreturn]] void refuse_denied(const std::string& answer, const HubAddress& address, bool has_token) {
  const std::string licence = "accept the licence on its page at the hub if it asks for that";
  throw DataError(answer + ": the repository is private or gated, or there is none", address.text(),
                  has_token
                      ? "check the name, that the token of HF_TOKEN or `hf auth login` may read it, and " + licence
                      : "check the name, set HF_TOKEN to a token that may read it, and " + licence);
}

/// All files of a repository, one after the other.
template <class F>
bool any_file(const Json& files, F&& f) {
  return std::ranges::any_of(files, [&](const Json& file) {
    const Json name = member(file, "rfilename");
    return name.is_string() && f(name.get<std::string>());
  });
}

StoreLocation files_at(const HubAddress& address) {
  StoreLocation hub = hub_endpoint();
  hub.url += "/" + hub_files(address);
  return hub;
}

/// Of a document that is read whole: tokenizers and indexes of large models have tens of MB.
constexpr std::uint64_t kMaxTextBytes = std::uint64_t{1} << 30;

const AskedFor kAsked{"", "give hf://ORG/NAME, http://HOST/PATH or https://HOST/PATH"};
const AskedFor kAskedHub{"", "write hf://ORG/NAME or hf://ORG/NAME@REVISION"};

/// "https://host/a/b" -> {"https://host", "a/b"}
struct Address {
  std::string origin, path;
  explicit Address(const std::string& text) {
    const auto slash = std::min(text.find('/', text.find("://") + 3), text.size());
    origin = text.substr(0, slash);
    path = text.substr(std::min(slash + 1, text.size()));
  }
};

/// The address that HubAddress::place() gave, with whatever names were appended.
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

}  // namespace

std::string HubAddress::text() const {
  return std::string(kHubScheme) + join_path(repository, folder) + "@" + revision;
}

std::string HubAddress::place() const {
  return std::string(kHubScheme) + join_path(repository + "@" + percent_encoded(revision, false), folder);
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

bool is_git_hash(const std::string& text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

StoreLocation hub_endpoint() {
  const std::string url = environment("HF_ENDPOINT", kPublicHub);
  StoreLocation location = parse_location(url, {"HF_ENDPOINT", "give https://…"});
  if (!location.remote) throw UsageError("not an address of a hub: " + url, "HF_ENDPOINT", "give https://…");
  if (may_see_secrets(location.url)) location.bearer_token = hub_token();
  return location;
}

std::string hub_files(const HubAddress& address) {
  return address.repository + "/resolve/" + percent_encoded(address.revision, false);
}

std::string hub_api(const HubAddress& address) {
  return std::string("api/") + (is_dataset(address.repository) ? "" : "models/") + address.repository;
}

bool HubRepository::has(const std::string& path) const {
  return files && any_file(*files, [&](const std::string& name) { return name == path; });
}

HubRepository ask_hub(const HubAddress& address, const TransferOptions& options, Status& status) {
  const StoreLocation hub = hub_endpoint();
  /// What the hub says at `path` below it; nothing where that is not there.
  const auto ask = [&](const std::string& path) -> std::optional<Json> {
    const std::string url = hub.url + "/" + path;
    const HttpAnswer answer = call_http(hub, {"GET", url, {}, "", {}}, options, status);
    if (answer.status == 200) return parse_json(answer.body, url);
    if (answer.status == 404) return std::nullopt;
    const std::string what = "the server answered HTTP " + std::to_string(answer.status);
    if (answer.status == 401 || answer.status == 403) refuse_denied(what, address, !hub.bearer_token.empty());
    throw TransportError(what, url, "check HF_ENDPOINT, or try again later");
  };
  const std::string path = hub_api(address) + "/revision/" + percent_encoded(address.revision, false) + "?blobs=true";
  if (const std::optional<Json> answer = ask(path)) {
    const Json commit = member(*answer, "sha"), files = member(*answer, "siblings");
    if (!commit.is_string() || !is_git_hash(commit.get<std::string>())) {
      throw DataError("the hub did not tell a commit", hub.url + "/" + path, "check HF_ENDPOINT");
    }
    HubAddress pinned = address;
    pinned.revision = commit;
    return {pinned, files.is_array() ? std::optional(files) : std::nullopt};
  }
  if (!ask(hub_api(address))) {
    throw DataError("the hub has no such repository", address.text(),
                    "check ORG/NAME; of a private one, set HF_TOKEN to a token that may read it");
  }
  throw DataError("the repository has no revision \"" + address.revision + "\"", address.text(),
                  "give a branch, a tag or a whole commit that its page at the hub lists");
}

/// A repository as a server of its files.
class HubServer : public Server {
 public:
  HubServer(HubRepository repository, const TransferOptions& options, Status& status)
      : Server(files_at(repository.pinned), options, status), repository_(std::move(repository)) {}

  [[nodiscard]] const std::string& commit() const noexcept { return repository_.pinned.revision; }

 protected:
  [[nodiscard]] DataError missing(const std::string& where) const override {
    const auto is_weights = [](const std::string& file) { return file.ends_with(".safetensors"); };
    if (is_weights(where) && repository_.files && !any_file(*repository_.files, is_weights)) {
      return DataError(
          "the repository has no weights in safetensors format", repository_.pinned.text(),
          "name one that has, or save the checkpoint in that format, with save_pretrained of transformers");
    }
    return DataError("the repository has no such file", where, "check the name, and what the repository holds");
  }

  void explain_denied(const Denied& error) const override {
    refuse_denied(error.what(), repository_.pinned, !hub_endpoint().bearer_token.empty());
  }

 private:
  const HubRepository repository_;
};

NetworkPlaces::NetworkPlaces(const TransferOptions& options) : options_(options) {}
NetworkPlaces::~NetworkPlaces() = default;

void NetworkPlaces::talk_to(Status& status) { status_ = &status; }

fs::path NetworkPlaces::settle(const std::string& place) {
  if (is_hub_address(place)) return parse_hub_address(place, kAskedHub).place();
  return parse_location(place, kAsked).url;
}

std::pair<Server*, std::string> NetworkPlaces::find(const fs::path& place) {
  if (is_hub_address(place.string())) {
    const HubAddress address = hub_address_of_place(place.string());
    if (!address.folder.empty() && !is_safe_relative_path(address.folder)) {  // as a name in an index could say
      throw UsageError("the address leads out of its repository", address.repository, kAskedHub.remedy);
    }
    return {&find_repository(address), address.folder};
  }
  const Address address(place.string());
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Server>& server = servers_[address.origin];
  if (server == nullptr) {
    server = std::make_unique<Server>(parse_location(address.origin, kAsked), options_, *status_);
  }
  std::string path = percent_decoded(address.path, kAsked);
  if (("/" + path + "/").find("/../") != std::string::npos) {  // as a name in an index could say
    throw UsageError("the address leads out of its folder", address.origin, kAsked.remedy);
  }
  return {server.get(), std::move(path)};
}

HubServer& NetworkPlaces::find_repository(const HubAddress& address) {
  HubAddress whole = address;
  whole.folder.clear();
  const std::lock_guard lock(mutex_);  // others that ask for a file there need the commit, too
  std::unique_ptr<HubServer>& server = repositories_[whole.text()];
  if (server == nullptr) server = std::make_unique<HubServer>(ask_hub(whole, options_, *status_), options_, *status_);
  return *server;
}

std::optional<Publication> NetworkPlaces::publication(const fs::path& folder) {
  if (!is_hub_address(folder.string())) return std::nullopt;
  const HubAddress address = hub_address_of_place(folder.string());
  if (!address.folder.empty()) return std::nullopt;
  return Publication{address.repository, find_repository(address).commit()};
}

std::optional<std::string> NetworkPlaces::take_kept(const fs::path& file) {
  const std::lock_guard lock(mutex_);
  if (kept_.first != file) return std::nullopt;
  return std::exchange(kept_, {}).second;
}

bool NetworkPlaces::exists(const fs::path& file) {
  std::optional<std::string> text = optional_text(file);
  if (!text) return false;
  const std::lock_guard lock(mutex_);
  kept_ = {file, std::move(*text)};
  return true;
}

std::string NetworkPlaces::text(const fs::path& file) {
  if (std::optional<std::string> kept = take_kept(file)) return std::move(*kept);
  const auto [server, path] = find(file);
  return server->text(path, kMaxTextBytes);
}

std::optional<std::string> NetworkPlaces::optional_text(const fs::path& file) {
  if (std::optional<std::string> kept = take_kept(file)) return kept;
  const auto [server, path] = find(file);
  return server->optional_text(path, kMaxTextBytes);
}

std::unique_ptr<PlacedFile> NetworkPlaces::open(const fs::path& file) {
  const auto [server, path] = find(file);
  return std::make_unique<RemoteFile>(*server, path);
}

void NetworkPlaces::read(std::span<const FilePart> parts) {
  RemoteReads reads;
  for (const FilePart& part : parts) part.file->add_to(reads, part.offset, part.to);
  for (const auto& [server, requests] : reads.by_server) server->read(requests);
}

}  // namespace oscar
