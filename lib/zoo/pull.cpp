// SPDX-License-Identifier: MIT
#include "zoo/pull.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "set/manifest.hpp"
#include "zoo/cache.hpp"
#include "zoo/hub.hpp"
#include "zoo/list.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {
namespace {

constexpr std::uint64_t kMaxSignatureBytes = std::uint64_t{64} << 10;

/// Keys that were remembered; a file that cannot be read is an error, not a reason to trust anybody.
std::vector<PublicKey> pinned(const fs::path& file) {
  std::vector<PublicKey> keys;
  if (!fs::exists(file)) return keys;
  const Json list = member(read_json(file), "keys");
  if (!list.is_array() || list.empty()) {
    throw DataError("the remembered keys cannot be read", file.string(), "remove this file to trust anew");
  }
  for (const Json& key : list) keys.push_back({key.is_string() ? key.get<std::string>() : ""});
  return keys;
}

bool any_of_these(const std::vector<PublicKey>& signers, const std::vector<PublicKey>& wanted) {
  return std::ranges::any_of(signers, [&](const PublicKey& key) { return std::ranges::count(wanted, key) > 0; });
}

std::string list(const std::vector<PublicKey>& keys) { return joined(keys, ", ", &PublicKey::base64); }

/// Throws DataError unless `signature_json`, which lies at `where`, shows that the manifest may be used. source: the
/// zoo and the model, under which keys are remembered in `cache`.
void require_trust(const TrustOptions& options, const SetManifest& manifest, const std::string& signature_json,
                   const std::string& where, const std::string& source, const SetCache& cache, Status& status) {
  const std::vector<PublicKey> signers = check_signatures(manifest.text, signature_json, where);
  std::vector<PublicKey> wanted;
  for (const fs::path& file : options.keys) wanted.push_back(read_public_key(file));
  if (!wanted.empty()) {
    if (any_of_these(signers, wanted)) return;
    throw DataError("the set is signed by " + list(signers) + ", not by a key that was given", source,
                    "do not use the set, or give its publisher's key with --key");
  }
  const fs::path file = cache.key_file(source);
  wanted = pinned(file);
  if (wanted.empty()) {
    Json keys = Json::array();
    for (const PublicKey& key : signers) keys.push_back(key.base64);
    write_json(file, {{"source", source}, {"keys", keys}});
    status.notice("from now on only sets of this model signed by " + list(signers) + " are accepted; " + file.string());
  } else if (!any_of_these(signers, wanted)) {
    throw DataError(
        "the set is signed by " + list(signers) + ", earlier ones by " + list(wanted), source,
        "ask the publisher; if the key was changed on purpose, give it with --key or remove " + file.string());
  }
}

/// The manifest of an entry of the index. Throws TransportError if it is another one, DataError if it is malformed.
SetManifest fetch_manifest(Transport& zoo, const ZooEntry& entry, const TransferOptions& options, Status& status) {
  const std::string path = join_path(entry.path, kManifestName), where = zoo.where(path);
  if (entry.manifest_size > kMaxDocumentBytes) {
    throw DataError("the index announces a manifest of " + plural(entry.manifest_size, "byte"), where,
                    "tell who hosts the zoo");
  }
  std::string text = fetch_text(zoo, path, {entry.manifest_size, entry.manifest_size}, options, status);
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

/// Where a set's files come from: the zoo, or the cache.
struct Source {
  Transport& transport;
  std::string prefix;  // the set's folder below the transport's root
};

class Pull {
 public:
  Pull(const PullOptions& options, Status& status, const TransportFactory& open, const ExamineSet& examine)
      : options_(options),
        status_(status),
        open_(open),
        examine_(examine),
        cache_(options.cache.empty() ? default_cache_folder() : options.cache) {
    if (is_hub_address(options.name)) {
      if (options.zoo) throw UsageError("a folder on the Hub is in no zoo", "--zoo", "leave it out");
      hub_ = parse_hub_address(options.name);
      zoo_ = hub_endpoint();
      asked_ = hub_->text() + (options.pair.empty() ? "" : " --pair " + options.pair);
      source_ = "hf://" + hub_->repository, offline_ = options.offline;
      return;
    }
    if (!options.pair.empty()) {
      throw UsageError("sets in a zoo have one pair of rotations", "--pair", "leave it out, or name a folder by hf://");
    }
    name_ = parse_set_name(options.name);
    zoo_ = zoo_location(options.zoo ? *options.zoo : default_zoo());
    asked_ = name_.text();
    source_ = zoo_.text() + " " + name_.model, offline_ = options.offline && zoo_.remote;
  }

  PullResult run() {
    if (const auto known = known_content()) {
      if (const auto manifest = find_set(cache_.set_folder(*known), *known)) {
        if (zoo_.remote && !offline_ && (name_.manifest_sha256.empty() || options_.trust.needed())) {
          status_.notice("from the cache; --refresh asks the zoo again");
        }
        check_trust(*manifest, nullptr);
        return deliver_cached(*manifest);
      }
    }
    if (offline_) {
      throw DataError("the cache does not have " + asked_ + " of " + zoo_.text(), cache_.set_folder("").string(),
                      "name the zoo that it came from with --zoo, or pull it once without --offline");
    }
    return hub_ ? ask_repository() : ask_zoo();
  }

 private:
  /// What the name stands for, as far as this can be told without asking the zoo.
  [[nodiscard]] std::optional<std::string> known_content() const {
    const bool pinned = !name_.manifest_sha256.empty();
    // Of an exact content only the signatures can have changed.
    const bool ask = (!pinned || options_.trust.needed()) && !offline_ && (options_.refresh || !zoo_.remote);
    if (ask) return std::nullopt;
    const auto known = pinned ? std::optional(name_.manifest_sha256) : cache_.recall(zoo_.text(), asked_);
    // A signature that was never fetched is the zoo's to tell.
    const bool unsigned_yet = known && options_.trust.needed() && !fs::exists(cache_.signature_file(*known));
    return unsigned_yet && !offline_ ? std::nullopt : known;
  }

  PullResult ask_zoo() {
    const auto transport = open_(zoo_, options_.transfer);
    const std::string where = transport->where(kIndexName);
    const std::string index = fetch_text(*transport, kIndexName, {0, kMaxDocumentBytes}, options_.transfer, status_);
    const ZooEntry entry = ZooIndex(index, where).require(name_, where);
    const Source source{*transport, entry.path};
    if (const auto cached = find_set(cache_.set_folder(entry.manifest_sha256), entry.manifest_sha256)) {
      check_trust(*cached, &source);
      if (!options_.out) remember(*cached);
      return deliver_cached(*cached);
    }
    return deliver(fetch_manifest(*transport, entry, options_.transfer, status_), source);
  }

  PullResult ask_repository() {
    const HubRepository repository = ask_hub(*hub_, options_.transfer, status_);
    const auto transport = open_(zoo_, options_.transfer);
    const Source source{*transport, join_path(hub_files(repository.pinned), hub_->folder)};
    if (!repository.has(join_path(hub_->folder, kManifestName))) {
      return deliver_foreign(repository.pinned, rotation_files(repository, options_.pair), source);
    }
    if (!options_.pair.empty()) {
      throw UsageError("the folder is a set of oscar, which has one pair of rotations", "--pair", "leave it out");
    }
    const std::string manifest = join_path(source.prefix, kManifestName);
    std::string text = fetch_text(*transport, manifest, {0, kMaxDocumentBytes}, options_.transfer, status_);
    return deliver(parse_set_manifest(std::move(text), transport->where(manifest)), source);
  }

  /// Files of others: fetched as they are, made a set, and known by that set's manifest.
  PullResult deliver_foreign(const HubAddress& address, const std::vector<FileDigest>& files, const Source& source) {
    if (options_.trust.needed()) {
      throw DataError("the files of this folder are not signed", address.text(),
                      "pull a set that its maker has signed");
    }
    const std::string key = sha256_hex(address.text() + " " + options_.pair);
    const fs::path partial = cache_.partial_folder(key), made = cache_.partial_folder(key + ".set");
    const Descriptor lock = lock_file(cache_.lock_of(key), true);
    std::uint64_t total = 0;
    for (const FileDigest& file : files) total += std::min(file.size, options_.max_bytes + 1);
    require_size(total);
    fetch_files(source.transport, source.prefix, files, partial, {options_.transfer, true}, status_);
    make_set_of_files(partial, made, address.text());
    examine(made);
    const SetManifest manifest = read_set_manifest(made);
    status_.notice("made a set of files that are not ours; its manifest says what they do not tell");
    if (!options_.out) {
      place_folder(made, cache_.set_folder(manifest.sha256));
      remember(manifest);
    }
    PullResult delivered = deliver_from(options_.out ? made : cache_.set_folder(manifest.sha256), manifest);
    delivered.fetched = true;
    std::error_code ignored;
    for (const fs::path& done : {partial, made}) fs::remove_all(done, ignored);
    return delivered;
  }

  void require_size(std::uint64_t bytes) const {
    if (bytes <= options_.max_bytes) return;
    throw DataError("the set has " + plural(bytes, "byte") + ", more than the " + std::to_string(options_.max_bytes) +
                        " that are allowed",
                    zoo_.text(), "pass a larger --max-size if you expect that");
  }

  /// Throws unless the manifest is signed as it must be. source: where a signature can be asked for; null: nowhere.
  void check_trust(const SetManifest& manifest, const Source* source) {
    if (!options_.trust.needed()) return;
    for (const fs::path& key : options_.trust.keys) (void)read_public_key(key);  // that is no matter of the signature
    const fs::path stored = cache_.signature_file(manifest.sha256);
    std::string text, where = stored.string();
    if (source != nullptr) {
      const std::string path = join_path(source->prefix, kSignatureName);
      where = source->transport.where(path);
      try {
        text = fetch_text(source->transport, path, {1, kMaxSignatureBytes}, options_.transfer, status_);
      } catch (const TransportError& error) {
        throw DataError(std::string("the set is not signed, or its signature cannot be fetched: ") + error.what(),
                        error.where(), "ask its publisher, or pull without --require-signature and --key");
      }
    } else {
      if (!fs::exists(stored)) {
        throw DataError("the cache has no signature of this set", stored.string(), "pull it once without --offline");
      }
      text = read_text(stored);
    }
    require_trust(options_.trust, manifest, text, where, source_, cache_, status_);
    if (source != nullptr) write_file(stored, text);
  }

  PullResult deliver(const SetManifest& manifest, const Source& source) {
    require_size(manifest.total_size);
    check_trust(manifest, &source);
    return options_.out ? deliver_to_out(manifest, source, true) : deliver_to_cache(manifest, source);
  }

  /// What contradicts itself is not kept, not even for the next attempt.
  void fetch_examined(const Source& source, const SetManifest& manifest, const fs::path& folder,
                      const FetchOptions& options) {
    fetch_set(source.transport, source.prefix, manifest, folder, options, status_);
    examine(folder);
  }

  /// Leaves nothing of a set that is not sound.
  void examine(const fs::path& folder) {
    std::error_code ignored;
    try {
      examine_(folder);
    } catch (const DataError& error) {
      fs::remove_all(folder, ignored);
      throw DataError(error.what(), asked_ + " of " + zoo_.text(), "do not use this set; tell who made it");
    } catch (...) {
      fs::remove_all(folder, ignored);
      throw;
    }
  }

  PullResult deliver_to_cache(const SetManifest& manifest, const Source& source) {
    const fs::path target = cache_.set_folder(manifest.sha256);
    const Descriptor lock = lock_file(cache_.lock_of(manifest.sha256), true);
    // Another process may have fetched it while this one waited.
    const bool fetch = !find_set(target, manifest.sha256);
    if (fetch) {
      const fs::path partial = cache_.partial_folder(manifest.sha256);
      fetch_examined(source, manifest, partial, {options_.transfer, true});
      place_folder(partial, target);
    }
    remember(manifest);
    return result(target, manifest, fetch);
  }

  /// A zoo in a folder is asked every time.
  void remember(const SetManifest& manifest) const {
    if (zoo_.remote) cache_.remember(zoo_.text(), asked_, manifest.sha256);
  }

  PullResult deliver_cached(const SetManifest& manifest) {
    return deliver_from(cache_.set_folder(manifest.sha256), manifest);
  }

  /// A set that is on this machine.
  PullResult deliver_from(const fs::path& folder, const SetManifest& manifest) {
    require_size(manifest.total_size);
    if (!options_.out) return result(folder, manifest, false);
    const auto transport = make_folder_transport(folder);
    return deliver_to_out(manifest, {*transport, ""}, false);
  }

  PullResult deliver_to_out(const SetManifest& manifest, const Source& source, bool fetched) {
    const fs::path target = fs::absolute(*options_.out).lexically_normal();
    if (find_set(target, manifest.sha256)) {
      status_.notice("exactly this set is there already");
      return result(target, manifest, false);
    }
    if (fetched) return fetch_to(target, manifest, source);
    return copy_to(target, manifest, source, false);
  }

  PullResult copy_to(const fs::path& target, const SetManifest& manifest, const Source& source, bool fetched) {
    AtomicFolder folder(target, replaceable_set(options_.force));
    fetch_examined(source, manifest, folder.path(), {options_.transfer});
    folder.commit();
    return result(target, manifest, fetched);
  }

  /// By way of the cache's partial folder: there the next pull finds what this one had when it was cut off.
  PullResult fetch_to(const fs::path& target, const SetManifest& manifest, const Source& source) {
    std::optional<Descriptor> lock;
    try {
      lock.emplace(lock_file(cache_.lock_of(manifest.sha256), true));
    } catch (const IoError&) {  // no cache can be kept here: a pull that is cut off begins anew
      return copy_to(target, manifest, source, true);
    }
    // Another process may have fetched it while this one waited.
    if (find_set(target, manifest.sha256)) return result(target, manifest, false);
    { const AtomicFolder refused_in_time(target, replaceable_set(options_.force)); }
    const fs::path partial = cache_.partial_folder(manifest.sha256);
    fetch_examined(source, manifest, partial, {options_.transfer, true});
    AtomicFolder folder(target, replaceable_set(options_.force));
    std::error_code error;
    fs::rename(partial, folder.path(), error);
    if (error) {  // another file system
      fetch_set(*make_folder_transport(partial), "", manifest, folder.path(), {options_.transfer}, status_);
      fs::remove_all(partial, error);
    }
    folder.commit();
    return result(target, manifest, true);
  }

  [[nodiscard]] PullResult result(const fs::path& path, const SetManifest& manifest, bool fetched) const {
    Json readers = readers_of(manifest.document);
    const std::string verdicts = verdicts_text(readers);
    if (!any_accepted(readers)) {
      status_.warning("its maker's verify has accepted this set for no reader (" + verdicts + "): use it with care");
    } else {
      status_.notice("by its maker's verify: " + verdicts);
    }
    return {path, asked_, zoo_.text(), manifest.sha256, manifest.total_size, fetched, std::move(readers)};
  }

  const PullOptions& options_;
  Status& status_;
  const TransportFactory& open_;
  const ExamineSet& examine_;
  std::optional<HubAddress> hub_;  // instead of a name in a zoo
  SetName name_;
  StoreLocation zoo_;
  std::string asked_;   // the name or address, in full
  std::string source_;  // under which trusted keys are remembered
  bool offline_;        // whether only the cache may be read: a zoo in a folder takes no network
  SetCache cache_;
};

}  // namespace

PullResult pull(const PullOptions& options, Status& status, const TransportFactory& open, const ExamineSet& examine) {
  return Pull(options, status, open, examine).run();
}

}  // namespace oscar
