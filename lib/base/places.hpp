// SPDX-License-Identifier: MIT
// What is only read may lie on disk or at a server. A place is a path or an address (s3://BUCKET/KEY,
// hf://ORG/REPO, http://…, https://…), both as std::filesystem::path, so that "/" appends names. Addresses are read by
// lib/remote, which main registers here: readers of formats see this interface only. Non-goals: writing, renaming,
// watching.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace oscar {

/// A file that is read in parts, by any number of threads.
class PlacedFile {
 public:
  virtual ~PlacedFile() = default;
  /// As many addresses as the file has bytes: spans of them name its parts. On disk they hold the bytes. At a server
  /// only what load_front() loaded is there; touching anything else ends the process.
  [[nodiscard]] virtual std::span<const std::byte> bytes() const = 0;
  /// The first `count` bytes of bytes(), or all of them, can be touched from now on. For one thread.
  virtual void load_front(std::uint64_t count) = 0;
  /// Copies to.size() bytes from `offset` on. Throws DataError if the file ends before.
  virtual void read(std::uint64_t offset, std::span<std::byte> to) const = 0;
  /// For pread(); negative: the file is not on disk.
  [[nodiscard]] virtual int descriptor() const = 0;
  /// Another one means other content: an ETag, or the time of the last change. Empty: not known, or on disk.
  [[nodiscard]] virtual std::string version() const = 0;
  /// How many read() calls at the same time are worth while; 0: as many as the caller has processors for.
  [[nodiscard]] virtual int readers() const = 0;
};

struct FilePart {
  const PlacedFile* file = nullptr;
  std::uint64_t offset = 0;
  std::span<std::byte> to;
};

/// What is known by the same name and revision wherever it lies.
struct Publication {
  std::string repository;  // "ORG/REPO"
  std::string revision;    // a commit
};

/// Whoever reads addresses. Methods throw TransportError, Interrupted, and UsageError for what is no address; any
/// thread may call them.
class RemotePlaces {
 public:
  virtual ~RemotePlaces() = default;
  /// Returns a place in its shortest form; credentials in it are kept for later requests and taken out, so that no
  /// message and no file can show them.
  [[nodiscard]] virtual std::filesystem::path settle(const std::string& place) = 0;
  /// Throws DataError for a file that does not exist.
  [[nodiscard]] virtual std::string text(const std::filesystem::path& file) = 0;
  /// Nothing for a file that does not exist, or may not be read: some stores do not tell the two apart.
  [[nodiscard]] virtual std::optional<std::string> optional_text(const std::filesystem::path& file) = 0;
  /// optional_text() will have one; may fetch the text, and keep it for text().
  [[nodiscard]] virtual bool exists(const std::filesystem::path& file) = 0;
  /// Names of what lies in a folder, sorted; nothing where the server gives no listings.
  [[nodiscard]] virtual std::optional<std::vector<std::string>> list(const std::filesystem::path& folder) = 0;
  /// Returns the name and commit of a folder that is a whole repository of a hub; nothing for others.
  [[nodiscard]] virtual std::optional<Publication> publication(const std::filesystem::path&) { return std::nullopt; }
  /// Asks for nothing yet.
  [[nodiscard]] virtual std::unique_ptr<PlacedFile> open(const std::filesystem::path& file) = 0;
  /// PlacedFile::read() of several parts at the same time. All files are this object's.
  virtual void read(std::span<const FilePart> parts) = 0;
};

/// Once, by main or a test; null: none. It must stay as long as it is registered.
void set_remote_places(RemotePlaces* places);
/// Throws BackendUnavailable if none are registered.
[[nodiscard]] RemotePlaces& remote_places();

/// Whether a place is an address.
[[nodiscard]] bool is_remote(const std::filesystem::path& place);

/// A file that is there and may be read.
[[nodiscard]] bool place_exists(const std::filesystem::path& file);
/// As read_text(); or that if the file exists.
[[nodiscard]] std::string place_text(const std::filesystem::path& file);
[[nodiscard]] std::optional<std::string> optional_text(const std::filesystem::path& file);
/// Sorted; nothing where a server gives no listings, or there is no such folder.
[[nodiscard]] std::optional<std::vector<std::string>> list_place(const std::filesystem::path& folder);
/// What RemotePlaces::publication() says of an address; nothing of a folder on disk.
[[nodiscard]] std::optional<Publication> publication_of(const std::filesystem::path& folder);
/// Throws DataError if the file is missing; at a server that shows only later.
[[nodiscard]] std::unique_ptr<PlacedFile> open_place(const std::filesystem::path& file);

}  // namespace oscar
