// SPDX-License-Identifier: MIT
// What is only read may lie on disk or at a server. A place is a path or an address (hf://ORG/REPO,
// http://…, https://…), both as std::filesystem::path, so that "/" appends names. Addresses are read by
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

namespace oscar {

/// Reads that servers are asked for at the same time; lib/remote defines it.
class RemoteReads;

/// A file that is read in parts, by any number of threads.
class PlacedFile {
 public:
  virtual ~PlacedFile() = default;
  /// Returns as many addresses as the file has bytes: spans of them name its parts. On disk they hold the bytes. At a
  /// server only what load_front() loaded is there; touching anything else ends the process.
  [[nodiscard]] virtual std::span<const std::byte> bytes() const = 0;
  /// Makes the first `count` bytes of bytes(), or all of them, readable by their addresses. For one thread.
  virtual void load_front(std::uint64_t count) = 0;
  /// Copies to.size() bytes from `offset` on. Throws DataError if the file ends before.
  virtual void read(std::uint64_t offset, std::span<std::byte> to) const = 0;
  /// Adds such a read to those that RemotePlaces::read() asks servers for. A file that is not at a server reads at
  /// once.
  virtual void add_to(RemoteReads& reads, std::uint64_t offset, std::span<std::byte> to) const {
    (void)reads;
    read(offset, to);
  }
  /// Returns a descriptor for pread(), or a negative number for a file that is not on disk.
  [[nodiscard]] virtual int descriptor() const = 0;
  /// Returns an ETag, or the time of the last change: another one means other content. Empty: not known, or on disk.
  [[nodiscard]] virtual std::string version() const = 0;
  /// Returns how many read() calls at the same time are worth while; 0: as many as the caller has processors for.
  [[nodiscard]] virtual int readers() const = 0;
};

struct FilePart {
  const PlacedFile* file = nullptr;
  std::uint64_t offset = 0;
  std::span<std::byte> to;
};

/// A folder that is known by the same name and revision wherever it lies.
struct Publication {
  std::string repository;  // "ORG/REPO"
  std::string revision;    // a commit
};

/// Whoever reads addresses. Methods throw TransportError, Interrupted, and UsageError for what is no address; any
/// thread may call them.
class RemotePlaces {
 public:
  virtual ~RemotePlaces() = default;
  /// Returns a place in its shortest form. Throws for one with a user or password, which it does not show.
  [[nodiscard]] virtual std::filesystem::path settle(const std::string& place) = 0;
  /// Returns the text of a file. Throws DataError for a file that does not exist.
  [[nodiscard]] virtual std::string text(const std::filesystem::path& file) = 0;
  /// Returns the text of a file; nothing if it does not exist, or may not be read: some stores do not tell the two
  /// apart.
  [[nodiscard]] virtual std::optional<std::string> optional_text(const std::filesystem::path& file) = 0;
  /// Tells whether optional_text() will have a text; may fetch it, and keep it for text().
  [[nodiscard]] virtual bool exists(const std::filesystem::path& file) = 0;
  /// Returns the name and commit of a folder that is a whole repository of a hub; nothing for others.
  [[nodiscard]] virtual std::optional<Publication> publication(const std::filesystem::path&) { return std::nullopt; }
  /// Returns the file at an address. Asks the server for nothing yet.
  [[nodiscard]] virtual std::unique_ptr<PlacedFile> open(const std::filesystem::path& file) = 0;
  /// Does several reads (PlacedFile::read) at the same time. All files are of this object.
  virtual void read(std::span<const FilePart> parts) = 0;
};

/// Registers who reads addresses; null: nobody. Called once, by main or a test. `places` must stay as long as it is
/// registered.
void set_remote_places(RemotePlaces* places);
/// Returns who reads addresses. Throws BackendUnavailable if nobody is registered.
[[nodiscard]] RemotePlaces& remote_places();

/// Tells whether a place is an address.
[[nodiscard]] bool is_remote(const std::filesystem::path& place);

/// Tells whether a file, on disk or at a server, is there and may be read.
[[nodiscard]] bool place_exists(const std::filesystem::path& file);
/// Returns the text of a file, on disk or at a server. Throws as read_text() does.
[[nodiscard]] std::string place_text(const std::filesystem::path& file);
[[nodiscard]] std::optional<std::string> optional_text(const std::filesystem::path& file);
/// Returns the name and commit of a folder that is a whole repository of a hub; nothing of other folders.
[[nodiscard]] std::optional<Publication> publication_of(const std::filesystem::path& folder);
/// Opens a file, on disk or at a server. Throws DataError if it is missing; at a server that shows only later.
[[nodiscard]] std::unique_ptr<PlacedFile> open_place(const std::filesystem::path& file);

}  // namespace oscar
