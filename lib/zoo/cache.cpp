// SPDX-License-Identifier: MIT
#include "zoo/cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <memory>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "remote/transport.hpp"
#include "zoo/index.hpp"

namespace oscar {
namespace {

constexpr std::size_t kHashBlock = std::size_t{1} << 20;

/// One file on its way to disk, from its first byte to its last. What is there from an earlier attempt stays, and is
/// checked with the rest: if together they are wrong, all comes again once.
class FileTransfer : public Transfer {
 public:
  /// count: told of bytes that come (and, negative, that are thrown away).
  using Count = std::function<void(std::int64_t bytes)>;

  FileTransfer(fs::path target, std::string path, FileDigest expected, std::string where, bool resume, Count count)
      : target_(std::move(target)),
        path_(std::move(path)),
        expected_(std::move(expected)),
        where_(std::move(where)),
        resume_(resume),
        count_(std::move(count)) {
    std::error_code error;
    fs::create_directories(target_.parent_path(), error);
    if (error) {
      throw IoError("cannot create folder: " + error.message(), target_.parent_path().string(), "choose another place");
    }
  }
  ~FileTransfer() override { close(); }
  FileTransfer(const FileTransfer&) = delete;
  FileTransfer& operator=(const FileTransfer&) = delete;

  /// Whether all of it is there already.
  [[nodiscard]] bool is_there() {
    open();
    if (received_ == expected_.size && complete()) return true;
    close();  // a set may have more files than a process may open
    return false;
  }

  Request request() override {
    open();
    mixed_ = mixed_ || received_ > 0;
    Request request{path_, received_, std::nullopt, expected_.size};
    request.sink = [this](std::span<const std::byte> bytes) { take(bytes); };
    return request;
  }

  bool complete() override {
    if (received_ < expected_.size) {
      throw TransientError("only " + std::to_string(received_) + " of " + plural(expected_.size, "byte") + " came",
                           where_, "run again; if it stays so, the file in the zoo is truncated: publish it again");
    }
    const bool right = expected_.git_oid.empty() ? hash_->hex() == expected_.sha256
                                                 : git_blob_sha1(read_text(target_)) == expected_.git_oid;
    if (right) {
      close();
      return true;
    }
    if (!mixed_ || restarted_) {
      throw TransportError("the content is not what the manifest lists: sha256 differs", where_,
                           "run again; if it stays so, the file in the zoo is damaged: publish it again");
    }
    restart();
    restarted_ = true;
    return false;
  }

  [[nodiscard]] std::uint64_t received() const override { return received_; }

 private:
  void open() {
    if (descriptor_ >= 0) return;
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (resume_ ? 0 : O_TRUNC);
    descriptor_ = ::open(target_.c_str(), flags, 0644);
    if (descriptor_ < 0) throw_io("cannot create", target_, errno);
    if (received_ > 0) return;
    const off_t there = ::lseek(descriptor_, 0, SEEK_END);
    if (there > 0 && static_cast<std::uint64_t>(there) > expected_.size) return restart();  // that was not ours
    std::vector<std::byte> block;
    while (received_ < static_cast<std::uint64_t>(std::max<off_t>(there, 0))) {
      block.resize(std::min<std::uint64_t>(kHashBlock, static_cast<std::uint64_t>(there) - received_));
      read_at(descriptor_, received_, block);
      hash_->update(block);
      received_ += block.size();
    }
    mixed_ = received_ > 0;
    count_(static_cast<std::int64_t>(received_));
  }

  void close() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }

  void restart() {
    if (::ftruncate(descriptor_, 0) != 0) throw_io("cannot write", target_, errno);
    count_(-static_cast<std::int64_t>(received_));
    received_ = 0;
    mixed_ = false;
    hash_ = std::make_unique<Sha256>();
  }

  void take(std::span<const std::byte> bytes) {
    if (bytes.size() > expected_.size - received_) {
      throw TransportError("there are more than the " + plural(expected_.size, "byte") + " that the manifest lists",
                           where_, "tell who hosts the zoo");
    }
    while (!bytes.empty()) {
      const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(received_));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_io("cannot write", target_, errno);
      hash_->update(bytes.first(static_cast<std::size_t>(count)));
      received_ += static_cast<std::uint64_t>(count);
      count_(count);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  fs::path target_;
  std::string path_;
  FileDigest expected_;
  std::string where_;
  bool resume_;
  Count count_;
  int descriptor_ = -1;
  bool mixed_ = false, restarted_ = false;  // put together from several answers; fetched anew for that
  std::uint64_t received_ = 0;
  std::unique_ptr<Sha256> hash_ = std::make_unique<Sha256>();  // of what was received
};

}  // namespace

Descriptor lock_file(const std::filesystem::path& path, bool wait) {
  create_parent(path);
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (file.get() < 0) throw_io("cannot open the lock file", path, errno);
  if (::flock(file.get(), wait ? LOCK_EX : LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    throw_if_interrupted();  // Ctrl-C ends the wait
    throw_io("another process holds the lock", path, error);
  }
  return file;
}

fs::path default_cache_folder() {
  if (const auto folder = environment("OSCAR_CACHE"); !folder.empty()) return folder;
  // The XDG specification says to ignore a relative path.
  if (const auto folder = environment("XDG_CACHE_HOME"); folder.starts_with('/')) return fs::path(folder) / "oscar";
  if (const auto home = environment("HOME"); !home.empty()) return fs::path(home) / ".cache" / "oscar";
  throw UsageError("there is no place for a cache: HOME is not set", "OSCAR_CACHE", "set it to a folder");
}

SetCache::SetCache(fs::path root) : root_(fs::absolute(root).lexically_normal()) {}

fs::path SetCache::set_folder(const std::string& manifest_sha256) const { return root_ / "sets" / manifest_sha256; }

fs::path SetCache::partial_folder(const std::string& manifest_sha256) const {
  return root_ / "partial" / manifest_sha256;
}

fs::path SetCache::lock_of(const std::string& manifest_sha256) const {
  return root_ / "locks" / (manifest_sha256 + ".lock");
}

fs::path SetCache::signature_file(const std::string& manifest_sha256) const {
  return root_ / "signatures" / (manifest_sha256 + ".json");
}

fs::path SetCache::key_file(const std::string& source) const { return root_ / "keys" / (sha256_hex(source) + ".json"); }

fs::path SetCache::record_file(const std::string& zoo, const std::string& name) const {
  return root_ / "names" / (sha256_hex(zoo + "\n" + name) + ".json");
}

std::optional<std::string> SetCache::recall(const std::string& zoo, const std::string& name) const {
  try {
    const Json hash = member(read_json(record_file(zoo, name)), "manifest_sha256");
    if (hash.is_string() && is_sha256(hash.get<std::string>())) return hash.get<std::string>();
  } catch (const Error&) {
    // No record, or a damaged one: the zoo knows.
  }
  return std::nullopt;
}

void SetCache::remember(const std::string& zoo, const std::string& name, const std::string& manifest_sha256) const {
  write_json(record_file(zoo, name), {{"zoo", zoo}, {"name", name}, {"manifest_sha256", manifest_sha256}});
}

void fetch_files(Transport& transport, const std::string& prefix, std::vector<FileDigest> files, const fs::path& folder,
                 const FetchOptions& options, Status& status) {
  // The largest first, on the connections that are there already; small ones find their place beside them.
  std::ranges::stable_sort(files, std::greater(), &FileDigest::size);
  std::int64_t total = 0, done = 0;
  for (const FileDigest& file : files) total += static_cast<std::int64_t>(file.size);
  const auto count = [&](std::int64_t bytes) { status.progress("bytes checked:", done += bytes, total); };
  std::deque<FileTransfer> all;
  std::vector<Transfer*> wanted;
  for (const FileDigest& file : files) {
    const std::string path = join_path(prefix, file.path);
    all.emplace_back(folder / file.path, path, file, transport.where(path), options.resume, count);
    if (!all.back().is_there()) wanted.push_back(&all.back());
  }
  fetch_all(transport, wanted, options.transfer, status);
}

void fetch_set(Transport& transport, const std::string& prefix, const SetManifest& manifest, const fs::path& folder,
               const FetchOptions& options, Status& status) {
  fetch_files(transport, prefix, manifest.files, folder, options, status);
  write_unsynced(folder / kManifestName, manifest.text);
}

}  // namespace oscar
