// SPDX-License-Identifier: MIT
#include "zoo/publish.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <memory>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "zoo/download.hpp"
#include "zoo/location.hpp"
#include "zoo/set_manifest.hpp"
#include "zoo/signatures.hpp"
#include "zoo/transport.hpp"

namespace oscar {
namespace {

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  (void)std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

fs::path folder_of(const std::string& zoo) {
  const ZooLocation location = parse_zoo_location(zoo);
  if (location.remote) {
    throw UsageError("this version publishes to folders only", location.text(),
                     "publish to a folder zoo (--zoo DIR); any static web server can serve that folder");
  }
  return location.folder;
}

SetManifest read_publishable(const PublishOptions& options) {
  SetManifest manifest = read_set_manifest(options.set);
  validate_json(manifest.document, "oscar.rotation_set.v1", (options.set / kManifestName).string());
  return manifest;
}

void require_accepted(const std::string& verdict, const PublishOptions& options, Status& status) {
  if (verdict == "accepted") return;
  const std::string what =
      verdict.empty() ? "the set has not been verified" : "verify did not accept the set: " + verdict;
  if (!options.force) {
    throw DataError(what, options.set.string(), "run oscar verify on it, or pass --force (the index will say so)");
  }
  status.warning(what + "; published because of --force, and the index says so");
}

/// The figures of `verification` without its per-layer lists.
Json without_lists(const Json& value) {
  if (!value.is_object()) return value;
  Json kept = Json::object();
  for (const auto& [key, member] : value.items()) {
    if (!member.is_array()) kept[key] = without_lists(member);
  }
  return kept;
}

Json summarise(const Json& manifest) {
  const auto bits = [&](std::size_t side) {
    const double levels = manifest.at("codec").at("levels").at(side);
    return std::round(std::log2(levels) * 100) / 100;
  };
  return {{"model", manifest.at("model").at("id")},
          {"recipe", manifest.at("recipe").at("name")},
          {"codec", manifest.at("codec").at("name")},
          {"bits", {{"key", bits(0)}, {"value", bits(1)}}},
          {"num_layers", manifest.at("layers").size()},
          {"verification", without_lists(manifest.value("verification", Json()))}};
}

ZooEntry make_entry(const SetName& name, const SetManifest& manifest, bool forced) {
  ZooEntry entry;
  entry.model = name.model;
  entry.tag = name.tag;
  entry.path = name.model + "/" + name.tag;
  entry.manifest_sha256 = manifest.sha256;
  entry.manifest_size = manifest.text.size();
  entry.total_size = manifest.total_size;
  entry.summary = summarise(manifest.document);
  entry.created = utc_now();
  entry.forced = forced;
  return entry;
}

void tell_unlisted(const fs::path& set, const SetManifest& manifest, Status& status) {
  for (const fs::path& file : list_files(set)) {
    const bool listed = file == kManifestName || file == kSignatureName ||
                        std::any_of(manifest.files.begin(), manifest.files.end(),
                                    [&](const FileDigest& known) { return known.path == file; });
    if (!listed) status.notice("left out, because the manifest does not list it: " + file.string());
  }
}

std::unique_ptr<FileLock> lock_zoo(const fs::path& zoo, Status& status) {
  const fs::path path = zoo / ".index.lock";
  try {
    return std::make_unique<FileLock>(path, false);
  } catch (const IoError&) {
    status.notice("waiting for the zoo's lock, which another process holds: " + path.string());
    return std::make_unique<FileLock>(path, true);
  }
}

ZooIndex read_index(const fs::path& zoo) {
  const fs::path path = zoo / kIndexName;
  return fs::exists(path) ? ZooIndex(read_text(path), path.string()) : ZooIndex();
}

/// signature.json for the zoo: with the signatures that the set, or its copy in the zoo, has already; empty if nobody
/// signed.
std::string signature_of(const PublishOptions& options, const SetManifest& manifest, const fs::path& target) {
  std::string existing;
  for (const fs::path& folder : {options.set, target}) {
    if (!existing.empty() || !fs::exists(folder / kSignatureName)) continue;
    existing = read_text(folder / kSignatureName);
    if (!is_signature_for(existing, manifest.sha256)) existing.clear();  // of what was there before
  }
  if (options.sign.empty() && existing.empty()) return {};
  if (!options.sign.empty()) return sign_manifest(manifest.text, options.sign, existing);
  (void)check_signatures(manifest.text, existing, kSignatureName);
  return existing;
}

std::vector<std::string> signers_of(const SetManifest& manifest, const fs::path& target) {
  std::vector<std::string> keys;
  const fs::path file = target / kSignatureName;
  if (!fs::exists(file)) return keys;
  for (const PublicKey& key : check_signatures(manifest.text, read_text(file), file.string()))
    keys.push_back(key.base64);
  return keys;
}

void copy_set(const PublishOptions& options, const SetManifest& manifest, const fs::path& target, Status& status) {
  require_replaceable(target);
  AtomicFolder folder(target, true);
  const auto source = make_folder_transport(options.set);
  fetch_set(*source, "", manifest, folder.path(), {TransferOptions{.retries = 0}}, status);
  const std::string signature = signature_of(options, manifest, target);
  if (!signature.empty()) write_file(folder.path() / kSignatureName, signature);
  folder.commit();
}

}  // namespace

PublishResult publish(const PublishOptions& options, Status& status) {
  const SetName name = parse_set_name(options.name);
  if (name.tag.empty())
    throw UsageError("a set is published under a tag, not under a hash", "--name", "write ORG/MODEL:TAG");
  const fs::path zoo = folder_of(options.zoo);
  const SetManifest manifest = read_publishable(options);
  const std::string verdict = verdict_of(manifest);

  const auto lock = lock_zoo(zoo, status);
  ZooIndex index = read_index(zoo);
  const auto before = index.find(name);
  const fs::path target = zoo / name.model / name.tag;
  if (before && before->manifest_sha256 == manifest.sha256 && before->path == name.model + "/" + name.tag &&
      find_set(target, manifest.sha256, SetCheck::hashes) && options.sign.empty()) {
    status.notice("the zoo has exactly this set already: " + name.text());
    return {name.text(), target, *before, false};
  }
  require_accepted(verdict, options, status);
  if (before && before->manifest_sha256 != manifest.sha256 && !options.force) {
    throw UsageError("the zoo has another set under " + name.text(), target.string(),
                     "choose another tag, or pass --force to replace it");
  }
  tell_unlisted(options.set, manifest, status);
  copy_set(options, manifest, target, status);
  ZooEntry entry = make_entry(name, manifest, verdict != "accepted");
  entry.signed_by = signers_of(manifest, target);
  index.put(entry);
  write_json(zoo / kIndexName, index.document());
  return {name.text(), target, entry, true};
}

}  // namespace oscar
