// SPDX-License-Identifier: MIT
// Zoos in repositories of the Hugging Face Hub. Large files go to its storage by the Git LFS batch API; then one
// commit, which names its parent, brings all files and the index: a set and its entry appear together or not at all.
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "remote/curl_call.hpp"
#include "remote/curl_handle.hpp"
#include "zoo/hub.hpp"
#include "zoo/signatures.hpp"
#include "zoo/store.hpp"

namespace oscar {
namespace {

constexpr std::size_t kSampleBytes = 512;

class HubStore : public ZooStore {
 public:
  HubStore(const std::string& zoo, const TransferOptions& options, Status& status)
      : address_(parse_hub_address(zoo)), hub_(hub_endpoint()), options_(options), status_(status) {
    if (hub_.bearer_token.empty()) {
      throw UsageError("publishing to the Hugging Face Hub needs a token", zoo, "set HF_TOKEN to one that may write");
    }
  }

  StoredDocument read(const std::string& path) override {
    const std::string about = hub_.url + "/" + percent_encoded(hub_commit_path(address_));
    HubAddress pinned = address_;
    pinned.revision = commit_in(ask("GET", about, ""), about);
    const std::string url = hub_.url + "/" + percent_encoded(hub_files(pinned) + "/" + in_repository(path));
    const HttpAnswer answer = call({"GET", url, {}, "", {}});
    if (answer.status == 404) return {"", pinned.revision};
    if (answer.status != 200) refuse(answer, url);
    return {answer.body, pinned.revision};
  }

  void put(const std::string& path, const fs::path& file, const FileDigest& digest) override {
    std::string sample(std::min<std::uint64_t>(digest.size, kSampleBytes), '\0');
    read_at(file, 0, std::as_writable_bytes(std::span(sample)));
    const Json entry{{"path", in_repository(path)}, {"sample", to_base64(sample)}, {"size", digest.size}};
    const Json answer =
        ask("POST", api("preupload/" + address_.revision), Json{{"files", Json::array({entry})}}.dump());
    const Json files = answer.is_object() ? answer.value("files", Json()) : Json();
    const bool large =
        files.is_array() && !files.empty() && files[0].is_object() && files[0].value("uploadMode", Json()) == "lfs";
    if (!large) {
      add_content(path, read_text(file));
      return;
    }
    upload(file, digest);
    operations_.push_back(
        {{"key", "lfsFile"},
         {"value",
          {{"path", in_repository(path)}, {"algo", "sha256"}, {"oid", digest.sha256}, {"size", digest.size}}}});
  }

  bool replace(const std::string& path, const std::string& text, const std::string& version) override {
    const Json header{{"summary", "oscar publish"}, {"description", ""}, {"parentCommit", version}};
    std::string lines = Json{{"key", "header"}, {"value", header}}.dump() + "\n";
    for (const Json& operation : operations_) lines += operation.dump() + "\n";
    lines += content_operation(path, text).dump() + "\n";
    const HttpAnswer answer =
        call({"POST", api("commit/" + address_.revision), {"Content-Type: application/x-ndjson"}, lines, {}});
    if (answer.status == 412 || answer.status == 409) return false;
    if (answer.status != 200) refuse(answer, where(path));
    return true;
  }

  bool checks_versions(const std::string&, const std::string&) override { return true; }

  [[nodiscard]] std::string where(const std::string& path) const override {
    return hub_.url + "/" + hub_files(address_) + "/" + in_repository(path);
  }

 private:
  [[nodiscard]] std::string in_repository(const std::string& path) const { return join_path(address_.folder, path); }

  [[nodiscard]] std::string api(const std::string& what) const {
    const bool dataset = address_.repository.starts_with("datasets/");
    return hub_.url + "/api/" + (dataset ? "" : "models/") + percent_encoded(address_.repository + "/" + what);
  }

  [[nodiscard]] Json content_operation(const std::string& path, const std::string& text) const {
    return {{"key", "file"},
            {"value", {{"content", to_base64(text)}, {"path", in_repository(path)}, {"encoding", "base64"}}}};
  }
  void add_content(const std::string& path, const std::string& text) {
    operations_.push_back(content_operation(path, text));
  }

  /// By the Git LFS batch API: the hub tells where to, or that it has this content already.
  void upload(const fs::path& file, const FileDigest& digest) {
    const Json request{{"operation", "upload"},
                       {"transfers", Json::array({"basic"})},
                       {"hash_algo", "sha256"},
                       {"objects", Json::array({{{"oid", digest.sha256}, {"size", digest.size}}})}};
    const std::string url = hub_.url + "/" + percent_encoded(address_.repository) + ".git/info/lfs/objects/batch";
    const HttpAnswer batch =
        call({"POST",
              url,
              {"Content-Type: application/vnd.git-lfs+json", "Accept: application/vnd.git-lfs+json"},
              request.dump(),
              {}});
    if (batch.status != 200) refuse(batch, url);
    const Json answer = parse_json(batch.body, url);
    const Json none;
    const auto member = [&](const Json& json, const char* name) {
      return json.is_object() ? json.value(name, none) : none;
    };
    const Json objects = member(answer, "objects");
    const Json object = objects.is_array() && !objects.empty() ? objects[0] : none;
    if (member(object, "error").is_object()) {
      throw TransportError("the hub refused a file: " + member(object, "error").dump().substr(0, 200), file.string(),
                           "");
    }
    const Json action = member(member(object, "actions"), "upload");
    if (action.is_null()) return;  // it is there
    const Json href = member(action, "href");
    if (!href.is_string()) throw DataError("the hub did not tell where to upload to", url, "check HF_ENDPOINT");
    HttpCall put{"PUT", href.get<std::string>(), {}, "", file, false};  // the address itself is the permission
    const Json headers = member(action, "header");
    for (const auto& [name, value] : headers.items()) {
      if (value.is_string()) put.headers.push_back(name + ": " + value.get<std::string>());
    }
    const HttpAnswer stored = call(put);
    if (stored.status < 200 || stored.status >= 300) refuse(stored, "the hub's storage");
  }

  Json ask(const std::string& method, const std::string& url, const std::string& body) {
    const HttpAnswer answer = call({method, url, {"Content-Type: application/json"}, body, {}});
    if (answer.status != 200) refuse(answer, url);
    return parse_json(answer.body, url);
  }

  HttpAnswer call(const HttpCall& call) { return call_http(hub_, call, options_, status_); }

  [[noreturn]] static void refuse(const HttpAnswer& answer, const std::string& where) {
    const bool denied = answer.status == 401 || answer.status == 403;
    throw TransportError("the hub answered HTTP " + std::to_string(answer.status), where,
                         denied ? "check that HF_TOKEN may write to this repository"
                                : "check the repository's name, and that it exists");
  }

  HubAddress address_;
  StoreLocation hub_;
  TransferOptions options_;
  Status& status_;
  std::vector<Json> operations_;
};

}  // namespace

std::unique_ptr<ZooStore> make_hub_store(const std::string& zoo, const TransferOptions& options, Status& status) {
  return std::make_unique<HubStore>(zoo, options, status);
}

}  // namespace oscar
