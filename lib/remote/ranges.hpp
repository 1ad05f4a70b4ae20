// SPDX-License-Identifier: MIT
// Stretches of files at a server, into memory: all at the same time, large ones in pieces, each tried again from where
// it broke off. A file must stay the one that its first answer came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/status.hpp"
#include "remote/transport.hpp"

namespace oscar {

/// What answers have told of a file. All that read the file share one, so that it is the same file for all of them. Any
/// thread may use it.
class RemoteObject {
 public:
  explicit RemoteObject(std::string path) : path_(std::move(path)) {}
  RemoteObject(const RemoteObject&) = delete;
  RemoteObject& operator=(const RemoteObject&) = delete;

  /// Returns the path at the server, '/'-separated.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Returns the size of the object; nothing before the first answer.
  [[nodiscard]] std::optional<std::uint64_t> size() const;
  [[nodiscard]] std::string version() const;
  /// Returns what requests say in If-Match: the version, if it is a strong ETag; empty: nothing.
  [[nodiscard]] std::string condition() const;
  /// Takes in the answer to a request for `length` bytes from `offset` on. where: names the file. Throws Changed if it
  /// is of another file than answers before, TransportError if the server does not send what was asked for.
  void learn(const PieceAnswer& answer, std::uint64_t offset, std::uint64_t length, const std::string& where);
  /// Takes in the answer to a request for the whole file, as the function above does.
  void learn(const PieceAnswer& answer, const std::string& where);

 private:
  const std::string path_;
  mutable std::mutex mutex_;
  std::optional<std::uint64_t> size_;   // some servers do not tell it of whole files
  std::optional<std::string> version_;  // nothing before the first answer
};

struct RangeRequest {
  RemoteObject* object = nullptr;
  std::uint64_t offset = 0;
  std::span<std::byte> to;
  /// Gets the number of bytes that came, where the file may be shorter. Null: fewer bytes are a DataError.
  std::uint64_t* count = nullptr;
};

/// Throws what RemoteObject::learn() throws, DataError, TransportError, NotFound, Denied, Interrupted.
void read_ranges(Transport& transport, std::span<const RangeRequest> requests, const TransferOptions& options,
                 Status& status);

}  // namespace oscar
