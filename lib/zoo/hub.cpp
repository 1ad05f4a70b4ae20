// SPDX-License-Identifier: MIT
#include "zoo/hub.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "rotation/convert.hpp"
#include "rotation/pairs.hpp"
#include "zoo/name.hpp"

namespace oscar {
namespace {

/// Of a thousand files each; the Hub asks for at most ten thousand in a folder.
constexpr int kMaxPages = 100;

/// From `<https://…/tree/…?cursor=…>; rel="next"` what follows the '?'; empty: there is no next page. The address
/// itself is known: a hub cannot send us elsewhere.
std::string query_of_next(const std::string& link) {
  const auto rel = link.find("rel=\"next\"");
  if (rel == std::string::npos) return "";
  const auto begin = link.rfind('<', rel), end = link.rfind('>', rel);
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  const std::string address = link.substr(begin + 1, end - begin - 1);
  const auto mark = address.find('?');
  const std::string query = mark == std::string::npos ? "" : address.substr(mark + 1);
  const auto plain = [](char c) { return c > ' ' && c < '\x7f' && c != '#'; };
  if (std::ranges::all_of(query, plain)) return query;
  throw DataError("the hub names a next page that is no address", address, "check HF_ENDPOINT");
}

/// One file of a tree, its path shortened by `prefix`.
FileDigest file_of(const Json& entry, const std::string& prefix, const std::string& where) {
  FileDigest file;
  const Json path = entry.value("path", Json()), size = entry.value("size", Json()), lfs = entry.value("lfs", Json());
  if (!path.is_string() || !size.is_number_unsigned()) {
    throw DataError("the hub's answer lists a file without path or size", where, "check HF_ENDPOINT");
  }
  file.path = path.get<std::string>();
  if (file.path.starts_with(prefix)) file.path.erase(0, prefix.size());
  file.size = size.get<std::uint64_t>();
  const Json oid = (lfs.is_object() ? lfs : entry).value("oid", Json());
  const std::string digest = oid.is_string() ? oid.get<std::string>() : "";
  (lfs.is_object() ? file.sha256 : file.git_oid) = digest;
  const bool known = lfs.is_object() ? is_sha256(digest) : is_git_hash(digest);
  if (!known || !is_safe_relative_path(file.path) || file.path.find('/') != std::string::npos) {
    throw DataError("the hub's answer lists a file with an unusable name or hash", where, "check HF_ENDPOINT");
  }
  return file;
}

bool holds_rotations(const std::string& name) {
  const bool sides = name.starts_with("k_rotation") || name.starts_with("v_rotation") || name.starts_with("layer_");
  if (name.ends_with(".pt")) return sides;
  return name.ends_with(".h5") || name.ends_with(".safetensors");
}

}  // namespace

StoreLocation zoo_location(const std::string& zoo) {
  if (!is_hub_address(zoo)) return parse_zoo_location(zoo);
  const HubAddress address = parse_hub_address(zoo);
  StoreLocation location = hub_endpoint();
  location.url += "/" + join_path(hub_files(address), address.folder);
  return location;
}

std::vector<FileDigest> list_hub_folder(Transport& hub, const HubAddress& address, const TransferOptions& options,
                                        Status& status) {
  std::vector<FileDigest> files;
  const std::string path = join_path(hub_api(address) + "/tree/" + address.revision, address.folder);
  const std::string prefix = address.folder.empty() ? "" : address.folder + "/", where = hub.where(path);
  std::string query;
  for (int pages = 0; pages == 0 || !query.empty(); ++pages) {
    if (pages == kMaxPages) {
      throw DataError("the hub's list of files does not end within " + std::to_string(kMaxPages) + " pages", where,
                      "name the folder that holds the set's files, or check HF_ENDPOINT");
    }
    const Page page = fetch_page(hub, path, query, {0, kMaxDocumentBytes}, options, status);
    const Json tree = parse_json(page.text, where);
    if (!tree.is_array()) throw DataError("the hub's answer is no list of files", where, "check HF_ENDPOINT");
    for (const Json& entry : tree) {
      if (entry.is_object() && entry.value("type", Json()) == "file") {
        files.push_back(file_of(entry, prefix, where));
      }
    }
    query = query_of_next(page.link);
  }
  return files;
}

std::vector<FileDigest> rotation_files(std::vector<FileDigest> files, const std::string& pair,
                                       const HubAddress& address) {
  std::erase_if(files, [](const FileDigest& file) { return !holds_rotations(file.path); });
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
  const auto only = [&](const std::string& prefix) {
    const auto fits = [&](const fs::path& file) {
      return file.string().starts_with(prefix) && file.extension() == ".pt";
    };
    return std::ranges::count_if(files, fits) == 1 ? files_folder / *std::ranges::find_if(files, fits) : fs::path();
  };
  const fs::path keys = only("k_rotation"), values = only("v_rotation");
  if (!keys.empty() && !values.empty()) return write_foreign_set(set, keys, values, source, true);
  RotationSet foreign = read_any_set(files.size() == 1 ? files_folder / files.front() : files_folder);
  if (!foreign.origin.is_null()) foreign.origin["source"] = source;
  write_rotation_set(set, foreign, {}, true);
}

}  // namespace oscar
