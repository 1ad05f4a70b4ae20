// SPDX-License-Identifier: MIT
#include "zoo/publish.hpp"

#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <random>
#include <set>
#include <thread>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "set/manifest.hpp"
#include "set/set.hpp"
#include "zoo/cache.hpp"
#include "zoo/hub.hpp"
#include "zoo/list.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {
namespace {

/// Attempts at a repository that others change at the same time.
constexpr int kMaxConflicts = 50;

/// Why the set needs --force; empty: it does not.
std::string why_forced(const Json& manifest) {
  const bool unknown = manifest["calibration"]["tokens"] == 0 && !manifest.contains("origin");
  if (unknown) return "the set does not say how many tokens it was fitted on";
  const Json readers = readers_of(manifest);
  return any_accepted(readers) ? "" : "verify has accepted the set for no reader: " + verdicts_text(readers);
}

void require_accepted(const SetManifest& manifest, const PublishOptions& options, Status& status) {
  const std::string what = why_forced(manifest.document);
  if (what.empty()) return;
  if (!options.force) {
    throw DataError(
        what, options.set.string(),
        "run oscar verify on it with --model and text, or --dump, and fit it again if that rejects it; or pass "
        "--force (the index will say so)");
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

/// Bits of one code; of the coded cache, of one stored value with its share of the scales.
double bits_of_side(const std::string& name, const Json& part, std::size_t side) {
  if (name != kCodedName) return std::log2(part["codec"]["levels"].at(side).get<double>());
  double bits = 0;
  for (const Json& layer : part.at("layers")) bits += layer.at(side == 0 ? "key" : "value").at("bits").get<double>();
  return std::round(bits / static_cast<double>(part["layers"].size()) * 100) / 100;
}

/// Model, parts, readers and figures, for people who choose a set; the manifest decides.
Json summary_of_set(const Json& manifest) {
  Json parts;
  for (const auto& [name, part] : manifest.at("parts").items()) {
    parts[name] = {{"recipe", part.at("recipe").at("name")},
                   {"bits", {{"key", bits_of_side(name, part, 0)}, {"value", bits_of_side(name, part, 1)}}},
                   {"num_layers", part.at("layers").size()}};
  }
  return {{"model", manifest.at("model").at("id")},
          {"recipe", manifest.at("recipe").at("name")},
          {"parts", std::move(parts)},
          {"readers", manifest.at("readers")},
          {"verification", without_lists(manifest.value("verification", Json()))}};
}

ZooEntry make_entry(const SetName& name, const SetManifest& manifest, bool forced) {
  ZooEntry entry;
  entry.model = name.model;
  entry.tag = name.tag;
  entry.path = published_path(name);
  entry.manifest_sha256 = manifest.sha256;
  entry.manifest_size = manifest.text.size();
  entry.total_size = manifest.total_size;
  entry.summary = summary_of_set(manifest.document);
  entry.created = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  entry.forced = forced;
  return entry;
}

Descriptor lock_zoo(const fs::path& zoo, Status& status) {
  const fs::path path = zoo / kLockName;
  try {
    return lock_file(path, false);
  } catch (const IoError&) {
    if (::access(path.c_str(), R_OK | W_OK) != 0) throw;  // it could not be opened, so nobody need hold it
    status.notice("waiting for the zoo's lock, which another process holds: " + path.string());
    return lock_file(path, true);
  }
}

ZooIndex index_or_empty(const fs::path& zoo) {
  const fs::path path = zoo / kIndexName;
  return fs::exists(path) ? ZooIndex(read_text(path), path.string()) : ZooIndex();
}

/// What is to be published, and the rules about it, wherever it goes.
struct ToPublish {
  const PublishOptions& options;
  Status& status;
  SetName name;
  SetManifest manifest;

  ToPublish(const PublishOptions& options_, Status& status_, const ExamineSet& examine)
      : options(options_), status(status_), name(parse_published_name(options_.name)) {
    if (!fs::exists(options.set / kManifestName)) {
      throw DataError("no set with a manifest.json is here", options.set.string(),
                      "make one of bare files first: oscar convert IN OUT --to set, then oscar verify OUT");
    }
    manifest = read_set_manifest(options.set);
    if (!options.sign.empty()) (void)sign_manifest(manifest.text, options.sign);  // fails before anything is made
    examine(options.set);
  }

  [[nodiscard]] std::string folder() const { return published_path(name); }

  /// The zoo has this content under this name, as far as the index tells.
  [[nodiscard]] bool is_in(const std::optional<ZooEntry>& before) const {
    return before && before->manifest_sha256 == manifest.sha256 && before->path == folder();
  }

  /// others: the set's place has files of no set that the index names, nor of this one.
  void require_free(const std::optional<ZooEntry>& before, bool others, const std::string& where) const {
    const bool another = before && before->manifest_sha256 != manifest.sha256;
    if (options.force || (!another && !others)) return;
    const std::string what = another ? "another set" : "files that its index does not name";
    throw UsageError("the zoo has " + what + " under " + name.text(), where,
                     "choose another tag, or pass --force to replace it");
  }

  /// signature.json for the zoo: with the signatures that the set has, and those of its copy there, whose
  /// signature.json is `published`; empty if nobody signed.
  [[nodiscard]] std::string signature(const std::string& published, const std::string& where) const {
    Signatures all;
    const auto add = [&](const std::string& text, const std::string& place) {
      const FoundSignatures found = find_signatures(manifest.text, text, place);
      all.insert(all.end(), found.good.begin(), found.good.end());
      return found.wrong;
    };
    try {
      const int wrong = published.empty() ? 0 : add(published, where);
      if (wrong > 0) status.warning(plural(wrong, "signature") + " in the zoo's " + where + " left out: not good");
    } catch (const DataError& error) {
      status.warning("the signatures in the zoo's " + where + " count as absent: " + error.what());
    }
    const fs::path own = options.set / kSignatureName;
    if (fs::exists(own) && add(read_text(own), own.string()) > 0) {
      throw DataError("a signature of the manifest is wrong", own.string(), "remove the file, and sign with --sign");
    }
    if (!options.sign.empty()) all.push_back(sign_manifest(manifest.text, options.sign));
    return signature_text(manifest.text, all);
  }

  [[nodiscard]] ZooEntry entry(const std::string& signature) const {
    ZooEntry made = make_entry(name, manifest, !why_forced(manifest.document).empty());
    if (signature.empty()) return made;
    for (const PublicKey& key : check_signatures(manifest.text, signature, kSignatureName)) {
      made.signed_by.push_back(key.base64);
    }
    return made;
  }
};

/// The text of index.json. Throws DataError if no pull would read it.
std::string text_of(const ZooIndex& index, const std::string& where) {
  std::string text = json_text(index.document());
  if (text.size() <= kMaxDocumentBytes) return text;
  throw DataError("the zoo's index would have " + plural(text.size(), "byte") + ", and pull reads no more than " +
                      std::to_string(kMaxDocumentBytes),
                  where, "start another zoo");
}

void copy_set(const ToPublish& publication, const fs::path& target, const std::string& signature) {
  AtomicFolder folder(target, replaceable_set(true));
  const auto source = make_folder_transport(publication.options.set);
  fetch_set(*source, "", publication.manifest, folder.path(), {TransferOptions{.retries = 0}}, publication.status);
  if (!signature.empty()) write_file(folder.path() / kSignatureName, signature);
  folder.commit();
}

PublishResult publish_to_folder(const ToPublish& publication, const fs::path& zoo) {
  if (lies_in(publication.options.set, zoo)) {
    throw UsageError("the zoo would lie in the set that is published", zoo.string(), "choose another folder for it");
  }
  for (const fs::path& place : {zoo / publication.folder(), zoo / kIndexName, zoo / kLockName}) {
    require_inside(zoo, place);
  }
  const Descriptor lock = lock_zoo(zoo, publication.status);
  ZooIndex index = index_or_empty(zoo);
  const auto before = index.find(publication.name);
  const fs::path target = zoo / publication.folder(), signed_copy = target / kSignatureName;
  const std::string published = fs::exists(signed_copy) ? read_text(signed_copy) : "";
  const std::string signature = publication.signature(published, signed_copy.string());
  const ZooEntry entry = publication.entry(signature);
  if (publication.is_in(before) && find_set(target, publication.manifest.sha256) && signature == published &&
      before->signed_by == entry.signed_by) {
    publication.status.notice("the zoo has exactly this set already: " + publication.name.text());
    return {publication.name.text(), target, *before, false};
  }
  require_accepted(publication.manifest, publication.options, publication.status);
  const bool others = !before && fs::exists(target / kManifestName) &&
                      sha256_file(target / kManifestName) != publication.manifest.sha256;
  publication.require_free(before, others, target.string());
  index.put(entry);
  const std::string text = text_of(index, (zoo / kIndexName).string());
  copy_set(publication, target, signature);
  write_file(zoo / kIndexName, text);
  return {publication.name.text(), target, entry, true};
}

void upload_set(const ToPublish& publication, const std::string& signature, HubStore& hub) {
  const fs::path& set = publication.options.set;
  std::int64_t done = 0;
  for (const FileDigest& file : publication.manifest.files) {
    throw_if_interrupted();
    if (file_size(set / file.path) != file.size || sha256_file(set / file.path) != file.sha256) {
      throw DataError("the file is not what the manifest lists: sha256 differs", (set / file.path).string(),
                      "fit the set again, or verify it again");
    }
    hub.put(join_path(publication.folder(), file.path), set / file.path, file);
    done += static_cast<std::int64_t>(file.size);
    publication.status.progress("bytes sent:", done, static_cast<std::int64_t>(publication.manifest.total_size));
  }
  if (!signature.empty()) hub.put_text(join_path(publication.folder(), kSignatureName), signature);
  hub.put_text(join_path(publication.folder(), kManifestName), publication.manifest.text);
}

ZooIndex read_index(const HubStore& hub, const StoredDocument& found) {
  return found.text.empty() ? ZooIndex() : ZooIndex(found.text, hub.where(kIndexName));
}

/// The files of the set's place, at the commit of `found`: of the set that lies there, by its manifest, and whether
/// there are others. Of a set that the index does not name all are others, but this set's own.
struct FilesThere {
  std::vector<std::string> own;
  bool others = false;

  FilesThere(const ToPublish& publication, HubStore& hub, const StoredDocument& found, bool is_named) {
    const std::string path = join_path(publication.folder(), kManifestName), text = hub.read(path).text;
    std::set<std::string> listed{kManifestName, kSignatureName};
    try {
      const SetManifest there = parse_set_manifest(text, hub.where(path));
      for (const FileDigest& file : there.files) listed.insert(file.path);
      if (!is_named && there.sha256 != publication.manifest.sha256) listed.clear();
    } catch (const DataError&) {
      listed.clear();
    }
    for (const std::string& file : hub.files_in(publication.folder(), found)) {
      const bool is_own = listed.contains(file);
      if (is_own) own.push_back(join_path(publication.folder(), file));
      others = others || !is_own;
    }
  }
};

PublishResult publish_to_hub(const ToPublish& publication, HubStore& hub) {
  const SetName& name = publication.name;
  const std::string where = hub.where(publication.folder());
  const std::string signed_copy = join_path(publication.folder(), kSignatureName);
  const StoredDocument now = hub.read(kIndexName);
  ZooIndex first = read_index(hub, now);
  const auto before = first.find(name);
  const std::string published = hub.read(signed_copy).text;
  const std::string signature = publication.signature(published, hub.where(signed_copy));
  const ZooEntry entry = publication.entry(signature);
  if (publication.is_in(before) && signature == published && before->signed_by == entry.signed_by) {
    publication.status.notice("the zoo has exactly this set already: " + name.text());
    return {name.text(), where, *before, false};
  }
  require_accepted(publication.manifest, publication.options, publication.status);
  publication.require_free(before, FilesThere(publication, hub, now, before.has_value()).others, where);
  first.put(entry);
  (void)text_of(first, hub.where(kIndexName));  // too large: that is told before anything is sent
  upload_set(publication, signature, hub);
  for (int attempt = 0; attempt < kMaxConflicts; ++attempt) {
    const StoredDocument found = hub.read(kIndexName);  // anew: uploading took its time
    if (hub.read(signed_copy).text != published) {
      throw TransportError("somebody else signed the set meanwhile", where, "run again");
    }
    ZooIndex index = read_index(hub, found);
    const auto meanwhile = index.find(name);
    const FilesThere there(publication, hub, found, meanwhile.has_value());
    publication.require_free(meanwhile, there.others, where);
    index.put(entry);
    if (hub.commit(kIndexName, text_of(index, hub.where(kIndexName)), there.own, found)) {
      return {name.text(), where, entry, true};
    }
    publication.status.detail("somebody else changed the repository; reading its index again");
    std::this_thread::sleep_for(
        std::chrono::milliseconds(50 + std::random_device{}() % (100U << std::min(attempt, 4))));
  }
  throw TransportError("the repository is changed by others all the time", where, "run again later");
}

}  // namespace

PublishResult publish(const PublishOptions& options, Status& status, const ExamineSet& examine) {
  const ToPublish publication(options, status, examine);
  if (is_hub_address(options.zoo)) {
    HubStore hub(options.zoo, options.transfer, status);
    return publish_to_hub(publication, hub);
  }
  const StoreLocation location = zoo_location(options.zoo);
  if (!location.remote) return publish_to_folder(publication, location.folder);
  throw UsageError("a zoo at a web server is not written to", location.text(),
                   "publish to a folder and copy that to the server, or publish to hf://ORG/REPO");
}

}  // namespace oscar
