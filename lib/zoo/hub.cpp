// SPDX-License-Identifier: MIT
#include "zoo/hub.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "set/convert.hpp"
#include "set/names.hpp"
#include "set/set_folder.hpp"
#include "zoo/index.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {
namespace {

constexpr std::size_t kSampleBytes = 512;

[[noreturn]] void refuse(const HttpAnswer& answer, const std::string& where) {
  const bool denied = answer.status == 401 || answer.status == 403;
  throw TransportError(
      "the hub answered HTTP " + std::to_string(answer.status), where,
      denied ? "check that HF_TOKEN may write to this repository" : "check the repository's name, and that it exists");
}

Json first_of(const Json& list) { return list.is_array() && !list.empty() ? list[0] : Json(); }

constexpr char kCheckHub[] = "check HF_ENDPOINT";

/// One file of a repository; path: its name in the folder.
FileDigest file_of(const Json& entry, const std::string& path, const std::string& where) {
  const Json size = member(entry, "size"), lfs = member(entry, "lfs");
  const Json hash = lfs.is_object() ? member(lfs, "sha256") : member(entry, "blobId");
  const std::string digest = hash.is_string() ? hash.get<std::string>() : "";
  const bool known = lfs.is_object() ? is_sha256(digest) : is_git_hash(digest);
  if (!known || !size.is_number_unsigned() || !is_safe_relative_path(path)) {
    throw DataError("the hub lists the file " + path + " without size or hash, or with an unusable name", where,
                    kCheckHub);
  }
  FileDigest file{path, "", size.get<std::uint64_t>(), ""};
  (lfs.is_object() ? file.sha256 : file.git_oid) = digest;
  return file;
}

bool holds_rotations(const std::string& name) {
  const bool sides = name.starts_with("k_rotation") || name.starts_with("v_rotation") || name.starts_with("layer_");
  if (name.ends_with(".pt")) return sides;
  return name.ends_with(".h5") || name.ends_with(".safetensors");
}

}  // namespace

std::vector<FileDigest> rotation_files(const HubRepository& repository, const std::string& pair) {
  const HubAddress& address = repository.pinned;
  if (!repository.files) throw DataError("the hub does not tell what the repository holds", address.text(), kCheckHub);
  const std::string prefix = address.folder.empty() ? "" : address.folder + "/";
  std::vector<FileDigest> files;
  for (const Json& entry : *repository.files) {
    const Json name = member(entry, "rfilename");
    if (!name.is_string() || !name.get<std::string>().starts_with(prefix)) continue;
    const std::string path = name.get<std::string>().substr(prefix.size());
    if (path.find('/') == std::string::npos && holds_rotations(path)) {
      files.push_back(file_of(entry, path, address.text()));
    }
  }
  if (files.empty()) {
    throw DataError("there are no rotation files in this folder", address.text(),
                    "name the folder that holds k_rotation*.pt and v_rotation*.pt");
  }
  std::vector<std::string> names;
  for (const FileDigest& file : files) names.push_back(file.path);
  if (pair.empty() && rotation_pairs(names).size() < 2) return files;
  const RotationPair chosen = choose_pair(names, pair, address.text());
  std::erase_if(files,
                [&](const auto& file) { return file.path != chosen.key_file && file.path != chosen.value_file; });
  return files;
}

void make_set_of_files(const fs::path& files_folder, const fs::path& set, const std::string& source) {
  const std::vector<fs::path> files = list_files(files_folder);
  Set foreign = read_any_set(files.size() == 1 ? files_folder / files.front() : files_folder);
  if (!foreign.origin.is_null()) foreign.origin["source"] = source;
  write_set(set, foreign, {}, true);
}

HubStore::HubStore(const std::string& zoo, const TransferOptions& options, Status& status)
    : address_(parse_hub_address(zoo)), hub_(hub_endpoint()), options_(options), status_(status) {
  if (hub_.bearer_token.empty()) {
    throw UsageError("publishing to the Hugging Face Hub needs a token", zoo, "set HF_TOKEN to one that may write");
  }
}

StoredDocument HubStore::read(const std::string& path) {
  HubRepository now = ask_hub(address_, options_, status_);
  const std::string url = hub_.url + "/" + hub_files(now.pinned) + "/" + percent_encoded(in_repository(path));
  const HttpAnswer answer = call({"GET", url, {}, "", {}});
  if (answer.status != 200 && answer.status != 404) refuse(answer, url);
  return {answer.status == 200 ? answer.body : "", std::move(now)};
}

void HubStore::put(const std::string& path, const fs::path& file, const FileDigest& digest) {
  std::string sample(std::min<std::uint64_t>(digest.size, kSampleBytes), '\0');
  read_at(file, 0, std::as_writable_bytes(std::span(sample)));
  const Json entry{{"path", in_repository(path)}, {"sample", to_base64(sample)}, {"size", digest.size}};
  const Json answer = post(api("preupload"), Json{{"files", Json::array({entry})}}.dump());
  if (member(first_of(member(answer, "files")), "uploadMode") != "lfs") return put_text(path, read_text(file));
  upload(file, digest);
  operations_.push_back(
      {{"key", "lfsFile"},
       {"value", {{"path", in_repository(path)}, {"algo", "sha256"}, {"oid", digest.sha256}, {"size", digest.size}}}});
}

void HubStore::put_text(const std::string& path, const std::string& text) {
  operations_.push_back(text_operation(path, text));
}

std::vector<std::string> HubStore::files_in(const std::string& folder, const StoredDocument& found) const {
  std::vector<std::string> files;
  const std::string prefix = in_repository(folder) + "/";
  for (const Json& file : found.repository.files.value_or(Json::array())) {
    const Json name = member(file, "rfilename");
    if (!name.is_string() || !name.get<std::string>().starts_with(prefix)) continue;
    files.push_back(name.get<std::string>().substr(prefix.size()));
  }
  return files;
}

bool HubStore::commit(const std::string& path, const std::string& text, const std::vector<std::string>& before,
                      const StoredDocument& found) {
  const Json header{
      {"summary", "oscar publish"}, {"description", ""}, {"parentCommit", found.repository.pinned.revision}};
  std::string lines = Json{{"key", "header"}, {"value", header}}.dump() + "\n";
  for (const Json& operation : operations_) lines += operation.dump() + "\n";
  for (const std::string& file : before) {
    const std::string own = in_repository(file);
    if (std::ranges::any_of(operations_, [&](const Json& put) { return put["value"]["path"] == own; })) continue;
    lines += Json{{"key", "deletedFile"}, {"value", {{"path", own}}}}.dump() + "\n";
  }
  lines += text_operation(path, text).dump() + "\n";
  const HttpAnswer answer = call({"POST", api("commit"), {"Content-Type: application/x-ndjson"}, lines, {}});
  if (answer.status == 412 || answer.status == 409) return false;
  if (answer.status != 200) refuse(answer, where(path));
  return true;
}

std::string HubStore::where(const std::string& path) const {
  return hub_.url + "/" + hub_files(address_) + "/" + percent_encoded(in_repository(path));
}

std::string HubStore::in_repository(const std::string& path) const { return join_path(address_.folder, path); }

std::string HubStore::api(const std::string& what) const {
  return hub_.url + "/" + hub_api(address_) + "/" + what + "/" + percent_encoded(address_.revision, false);
}

Json HubStore::text_operation(const std::string& path, const std::string& text) const {
  return {{"key", "file"},
          {"value", {{"content", to_base64(text)}, {"path", in_repository(path)}, {"encoding", "base64"}}}};
}

/// By the Git LFS batch API: the hub tells where to, or that it has this content already.
void HubStore::upload(const fs::path& file, const FileDigest& digest) {
  const Json request{{"operation", "upload"},
                     {"transfers", Json::array({"basic"})},
                     {"hash_algo", "sha256"},
                     {"objects", Json::array({{{"oid", digest.sha256}, {"size", digest.size}}})}};
  const std::string url = hub_.url + "/" + percent_encoded(address_.repository) + ".git/info/lfs/objects/batch";
  const HttpAnswer batch = call({"POST",
                                 url,
                                 {"Content-Type: application/vnd.git-lfs+json", "Accept: application/vnd.git-lfs+json"},
                                 request.dump(),
                                 {}});
  if (batch.status != 200) refuse(batch, url);
  const Json object = first_of(member(parse_json(batch.body, url), "objects"));
  if (member(object, "error").is_object()) {
    throw TransportError("the hub refused a file: " + member(object, "error").dump().substr(0, 200), file.string(), "");
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

Json HubStore::post(const std::string& url, const std::string& body) {
  const HttpAnswer answer = call({"POST", url, {"Content-Type: application/json"}, body, {}});
  if (answer.status != 200) refuse(answer, url);
  return parse_json(answer.body, url);
}

}  // namespace oscar
