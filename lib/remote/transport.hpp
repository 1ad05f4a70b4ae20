// SPDX-License-Identifier: MIT
// Where files lie: a folder (a path or file://) or a web server (http://, https://).
// It also says how bytes come from a server or a folder. A transport makes one attempt at a resource and streams it;
// which resources, in which pieces, how often, and whether they are right is its caller's business (fetch.hpp).
// Non-goals: uploads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/errors.hpp"

namespace oscar {

struct StoreLocation {
  bool remote = false;
  std::filesystem::path folder;  // absolute; if not remote
  std::string url;               // without a trailing slash; if remote
  std::string bearer_token;      // sent to the location's own host; never shown, never stored

  /// Names the place in messages and in caches.
  [[nodiscard]] std::string text() const { return remote ? url : folder.string(); }
};

/// Value of this environment variable, if it is set and not empty.
[[nodiscard]] std::string environment(const char* name, const std::string& otherwise = "");

/// What a UsageError says where a text is no location: the option that it was given for, and what to give.
struct AskedFor {
  std::string option;
  std::string remedy = "give a folder, file:///…, http://… or https://…";
};
/// Throws UsageError, also for an address with a user or password, which it does not show.
[[nodiscard]] StoreLocation parse_location(const std::string& text, const AskedFor& asked);

/// Whether a password or token may be sent there: over TLS, or to this machine.
[[nodiscard]] bool may_see_secrets(const std::string& url);

/// "a" + "b" -> "a/b"; "" + "b" -> "b"; "a" + "" -> "a".
[[nodiscard]] std::string join_path(const std::string& prefix, const std::string& path);
/// Everything but RFC 3986's unreserved characters, and slashes if they stay, as %XX: a path from an index cannot grow
/// a query or a host (curl_handle.cpp).
[[nodiscard]] std::string percent_encoded(const std::string& path, bool slashes_stay = true);
/// "%41" -> "A". Throws UsageError for a code that is none, or is that of a null byte.
[[nodiscard]] std::string percent_decoded(const std::string& text, const AskedFor& asked);

/// A failure that may go away by itself: a lost connection, HTTP 429 or 5xx.
struct TransientError : TransportError {
  using TransportError::TransportError;
  double retry_after_seconds = 0;  // what the server asked for; 0: it did not say
};

/// There is no such resource: HTTP 404, or no such file.
struct NotFound : TransportError {
  using TransportError::TransportError;
};

/// HTTP 401 or 403. Some servers answer so for what is not there, too.
struct Denied : TransportError {
  using TransportError::TransportError;
};

/// The resource is no longer the one that was asked for before: HTTP 412, or another ETag, time or size.
struct Changed : TransportError {
  explicit Changed(const std::string& where)
      : TransportError("the file has changed since this run first read it", where, "run again once it stays as it is") {
  }
};

/// The largest document that is held in memory: an index, a manifest, an answer.
inline constexpr std::uint64_t kMaxDocumentBytes = std::uint64_t{8} << 20;

struct TransferOptions {
  /// Give up on a server that sends nothing, or next to nothing, for so long.
  double timeout_seconds = 30;
  /// Further attempts after a transient failure.
  int retries = 3;
  /// Pause before the first of them; each next one waits twice as long.
  double first_pause_seconds = 0.5;
};

/// What the header of an answer says, before its bytes come.
struct AnswerHeader {
  bool partial = false;               // the server sends a piece; if not, everything from the start, whatever was asked
  std::uint64_t offset = 0;           // of the first byte in the resource
  std::optional<std::uint64_t> size;  // of the whole resource
  std::string version;                // ETag, else the time of the last change; empty: the server tells neither
};

/// One attempt at a resource, or a piece of it.
struct Request {
  std::string path;                     // relative to the location, '/'-separated
  std::uint64_t offset = 0;             // first byte
  std::optional<std::uint64_t> length;  // absent: to the end
  std::uint64_t max_bytes = 0;          // of the whole resource: one known to be larger is refused
  std::string if_match = {};            // an ETag: a resource that has another one by now is an error (Changed)
  /// Receives the bytes from `offset` on; more than `length` if the server sends no pieces. Exceptions end the request.
  std::function<void(std::span<const std::byte>)> sink = {};
  /// Called with the header of an answer that succeeded, before its first byte; exceptions end the request.
  std::function<void(const AnswerHeader&)> begin = {};
  /// Called once, in the end; null: it went well. What it throws ends all transfers.
  std::function<void(std::exception_ptr)> done = {};
};

/// Called whenever there is room for another request: the next one, if there is one now. Called again later until
/// `finished` is set.
struct RequestSource {
  std::function<std::optional<Request>()> next;
  std::function<bool()> finished;
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// Makes requests, several at the same time where that helps. Failures of a request (TransportError, TransientError,
  /// NotFound, Denied, Changed, IoError) go to its `done`. Throws Interrupted.
  virtual void run(const RequestSource& source) = 0;
  /// Returns how many requests at once are worth while.
  [[nodiscard]] virtual int concurrency() const { return 1; }
  /// Names the resource in messages.
  [[nodiscard]] virtual std::string where(const std::string& path) const = 0;
};

[[nodiscard]] std::unique_ptr<Transport> make_folder_transport(std::filesystem::path root);
[[nodiscard]] std::unique_ptr<Transport> make_curl_transport(const StoreLocation& location,
                                                             const TransferOptions& options);

using TransportFactory = std::function<std::unique_ptr<Transport>(const StoreLocation&, const TransferOptions&)>;
/// The right one of the two above.
[[nodiscard]] std::unique_ptr<Transport> open_transport(const StoreLocation& location, const TransferOptions& options);

}  // namespace oscar
