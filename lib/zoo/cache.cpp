// SPDX-License-Identifier: MIT
#include "zoo/cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "base/status.hpp"
#include "remote/location.hpp"
#include "zoo/name.hpp"

namespace oscar {

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
  throw UsageError("there is no place for a cache: HOME is not set", "OSCAR_CACHE", "set OSCAR_CACHE, or pass --out");
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

}  // namespace oscar
