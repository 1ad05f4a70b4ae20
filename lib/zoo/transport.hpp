// SPDX-License-Identifier: MIT
// How bytes come out of a zoo. A transport makes one attempt and streams one resource; retries, sizes and hashes are
// download.hpp's business. Non-goals: uploads, ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/errors.hpp"
#include "zoo/location.hpp"

namespace oscar {

/// A failure that may go away by itself: a lost connection, HTTP 429 or 5xx.
struct TransientError : TransportError {
  using TransportError::TransportError;
  double retry_after_seconds = 0;  // what the server asked for; 0: it did not say
};

struct TransferOptions {
  /// Give up on a server that sends nothing for so long.
  double timeout_seconds = 30;
  /// Further attempts after a transient failure.
  int retries = 3;
  /// Pause before the first of them; each next one waits twice as long.
  double first_pause_seconds = 0.5;
};

using ByteSink = std::function<void(std::span<const std::byte>)>;

class Transport {
 public:
  virtual ~Transport() = default;
  /// Streams the resource at `path` (relative to the zoo, '/'-separated) into `sink`, whose exceptions pass through.
  /// A resource known to exceed max_bytes is refused. Throws TransportError, TransientError, Interrupted.
  virtual void get(const std::string& path, std::uint64_t max_bytes, const ByteSink& sink) = 0;
  /// Names the resource in messages.
  [[nodiscard]] virtual std::string where(const std::string& path) const = 0;
};

[[nodiscard]] std::unique_ptr<Transport> make_folder_transport(std::filesystem::path root);
[[nodiscard]] std::unique_ptr<Transport> make_curl_transport(const ZooLocation& location,
                                                             const TransferOptions& options);

using TransportFactory = std::function<std::unique_ptr<Transport>(const ZooLocation&, const TransferOptions&)>;
/// The right one of the two above.
[[nodiscard]] std::unique_ptr<Transport> open_transport(const ZooLocation& location, const TransferOptions& options);

}  // namespace oscar
