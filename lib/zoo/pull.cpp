// SPDX-License-Identifier: MIT
#include "zoo/pull.hpp"

#include <optional>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "zoo/cache.hpp"
#include "zoo/download.hpp"
#include "zoo/index.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {
namespace {

/// Where a set's files come from: the zoo, or the cache.
struct Source {
  Transport& transport;
  std::string prefix;  // the set's folder below the transport's root
};

class Pull {
 public:
  Pull(const PullOptions& options, Status& status, const TransportFactory& open)
      : options_(options),
        status_(status),
        open_(open),
        name_(parse_set_name(options.name)),
        zoo_(parse_zoo_location(options.zoo ? *options.zoo : default_zoo())),
        cache_(options.cache.empty() ? default_cache_folder() : options.cache) {}

  PullResult run() {
    if (const auto known = known_content()) {
      if (const auto manifest = find_set(cache_.set_folder(*known), *known, SetCheck::sizes)) {
        if (zoo_.remote && !options_.offline && name_.manifest_sha256.empty()) {
          status_.notice("from the cache; --refresh asks the zoo again");
        }
        return deliver_cached(*manifest);
      }
    }
    if (options_.offline) {
      throw DataError("the cache does not have " + name_.text() + " of " + zoo_.text(), cache_.set_folder("").string(),
                      "pull it once without --offline");
    }
    return ask_zoo();
  }

 private:
  /// What the name stands for, as far as this can be told without asking the zoo.
  [[nodiscard]] std::optional<std::string> known_content() const {
    if (!name_.manifest_sha256.empty()) return name_.manifest_sha256;
    const bool ask = !options_.offline && (options_.refresh || !zoo_.remote);
    return ask ? std::nullopt : cache_.recall(zoo_, name_);
  }

  PullResult ask_zoo() {
    const auto transport = open_(zoo_, options_.transfer);
    const std::string where = transport->where(kIndexName);
    const ZooIndex index(fetch_text(*transport, kIndexName, {0, kMaxDocumentBytes}, options_.transfer, status_), where);
    const ZooEntry entry = index.require(name_, where);
    if (const auto manifest =
            find_set(cache_.set_folder(entry.manifest_sha256), entry.manifest_sha256, SetCheck::sizes)) {
      if (!options_.out) cache_.remember(zoo_, name_, manifest->sha256);
      return deliver_cached(*manifest);
    }
    const SetManifest manifest = fetch_manifest(*transport, entry);
    const Source source{*transport, entry.path};
    return options_.out ? deliver_to_out(manifest, source, true) : deliver_to_cache(manifest, source);
  }

  SetManifest fetch_manifest(Transport& transport, const ZooEntry& entry) {
    const std::string path = join_path(entry.path, kManifestName), where = transport.where(path);
    if (entry.manifest_size > kMaxDocumentBytes) {
      throw DataError("the index announces a manifest of " + std::to_string(entry.manifest_size) + " bytes", where,
                      "tell who hosts the zoo");
    }
    std::string text =
        fetch_text(transport, path, {entry.manifest_size, entry.manifest_size}, options_.transfer, status_);
    if (sha256_hex(text) != entry.manifest_sha256) {
      throw TransportError("the manifest is not the one that the index names: sha256 differs", where,
                           "run again, since the zoo may be changing; if it stays so, publish the set again");
    }
    SetManifest manifest = parse_set_manifest(std::move(text), where);
    if (manifest.total_size != entry.total_size) {
      throw DataError("index and manifest disagree about the size of the set", where, "publish the set again");
    }
    return manifest;
  }

  PullResult deliver_to_cache(const SetManifest& manifest, const Source& source) {
    const fs::path target = cache_.set_folder(manifest.sha256);
    const FileLock lock(cache_.lock_file(manifest.sha256), true);
    // Another process may have fetched it while this one waited.
    const bool fetch = !find_set(target, manifest.sha256, SetCheck::sizes);
    if (fetch) {
      AtomicFolder folder(target, true);
      fetch_set(source.transport, source.prefix, manifest, folder.path(), options_.transfer, status_);
      folder.commit();
    }
    cache_.remember(zoo_, name_, manifest.sha256);
    return result(target, manifest, fetch);
  }

  PullResult deliver_cached(const SetManifest& manifest) {
    const fs::path folder = cache_.set_folder(manifest.sha256);
    if (!options_.out) return result(folder, manifest, false);
    const auto transport = make_folder_transport(folder);
    return deliver_to_out(manifest, {*transport, ""}, false);
  }

  PullResult deliver_to_out(const SetManifest& manifest, const Source& source, bool fetched) {
    if (options_.out->empty()) throw UsageError("the output folder has an empty name", "--out", "name a folder");
    const fs::path target = fs::absolute(*options_.out).lexically_normal();
    if (find_set(target, manifest.sha256, SetCheck::hashes)) {
      status_.notice("exactly this set is there already");
      return result(target, manifest, false);
    }
    if (options_.force) require_replaceable(target);
    AtomicFolder folder(target, options_.force);
    fetch_set(source.transport, source.prefix, manifest, folder.path(), options_.transfer, status_);
    folder.commit();
    return result(target, manifest, fetched);
  }

  [[nodiscard]] PullResult result(const fs::path& path, const SetManifest& manifest, bool fetched) const {
    if (verdict_of(manifest) != "accepted") status_.warning("verify has not accepted this set: use it with care");
    return {path, name_.text(), zoo_.text(), manifest.sha256, manifest.total_size, fetched};
  }

  const PullOptions& options_;
  Status& status_;
  const TransportFactory& open_;
  SetName name_;
  ZooLocation zoo_;
  SetCache cache_;
};

}  // namespace

PullResult pull(const PullOptions& options, Status& status, const TransportFactory& open) {
  return Pull(options, status, open).run();
}

}  // namespace oscar
