// SPDX-License-Identifier: MIT
// Texts and stretches of files out of a transport that may fail, all at the same time. Transient failures are tried
// again from where they happened, a few times, with growing pauses; a file must stay the one that its first answer came
// from.
//
// One HTTP call with an answer to look at: what uploads and programming interfaces need. Any status is an answer; lost
// connections and busy servers are tried again as downloads are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "remote/transport.hpp"

namespace oscar {

/// Something on its way: by one request or, where a line is cut, by several.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Returns the request for all that is missing, without `done`.
  [[nodiscard]] virtual Request request() = 0;
  /// Called when an answer has ended well: whether nothing is missing now. Throws TransientError if it brought too
  /// little, other errors if it was wrong.
  [[nodiscard]] virtual bool complete() = 0;
  /// Returns the number of bytes that need not come again.
  [[nodiscard]] virtual std::uint64_t received() const = 0;
};

/// Throws what requests and complete() throw for good, Interrupted.
void fetch_all(Transport& transport, std::span<Transfer* const> wanted, const TransferOptions& options, Status& status);

/// Runs `attempt` until it succeeds, fails for good, or has failed transiently 1 + options.retries times.
void with_retries(const TransferOptions& options, Status& status, const std::function<void()>& attempt);

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
  /// Returns the ETag, or the time of the last change; empty: the server tells neither, or nothing was asked yet.
  [[nodiscard]] std::string version() const;
  /// Returns what requests say in If-Match: the version, if it is a strong ETag; empty: nothing.
  [[nodiscard]] std::string condition() const;
  /// Takes in the answer to a request for `length` bytes from `offset` on. where: names the file. Throws Changed if it
  /// is of another file than answers before, TransportError if the server does not send what was asked for.
  void learn(const AnswerHeader& answer, std::uint64_t offset, std::uint64_t length, const std::string& where);
  /// Takes in the answer to a request for the whole file, as the function above does.
  void learn(const AnswerHeader& answer, const std::string& where);

 private:
  const std::string path_;
  mutable std::mutex mutex_;
  std::optional<std::uint64_t> size_;   // some servers do not tell it of whole files
  std::optional<std::string> version_;  // nothing before the first answer
};

struct ByteLimits {
  std::uint64_t least = 0, most = 0;
};
/// Fetches a whole document. Fewer bytes than limits.least are a lost connection, more than limits.most are refused.
/// file: what is known of it, if that may not change; null: nothing. Throws what fetch_all() throws.
[[nodiscard]] std::string fetch_text(Transport& transport, const std::string& path, const ByteLimits& limits,
                                     const TransferOptions& options, Status& status, RemoteObject* file = nullptr);

struct RangeRequest {
  RemoteObject* object = nullptr;
  std::uint64_t offset = 0;
  std::span<std::byte> to;
};
/// Reads stretches into memory, large ones in pieces. A file that ends before is a DataError. Throws what
/// RemoteObject::learn() and fetch_all() throw, DataError.
void read_ranges(Transport& transport, std::span<const RangeRequest> requests, const TransferOptions& options,
                 Status& status);

/// Redirects of a GET are followed; of a call that changes something only those that keep its method (307, 308).
struct HttpCall {
  std::string method, url;  // GET, PUT or POST; the url in full
  std::vector<std::string> headers;
  std::string text;            // the body, or
  std::filesystem::path file;  // a file that is the body; its size may not change
  bool authorize = true;       // send what the location's host may know
};

struct HttpAnswer {
  long status = 0;
  std::string body;  // up to kMaxDocumentBytes
};

/// Throws TransportError, IoError, Interrupted.
[[nodiscard]] HttpAnswer call_http(const StoreLocation& location, const HttpCall& call, const TransferOptions& options,
                                   Status& status);

}  // namespace oscar
