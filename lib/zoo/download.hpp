// SPDX-License-Identifier: MIT
// Bytes of known size and hash, out of a transport that may fail. Whatever does not match is refused, and no more is
// written than was announced. Transient failures are tried again, a few times, with growing pauses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/status.hpp"
#include "zoo/set_manifest.hpp"
#include "zoo/transport.hpp"

namespace oscar {

/// Runs `attempt` until it succeeds, fails for good, or has failed transiently 1 + options.retries times.
void with_retries(const TransferOptions& options, Status& status, const std::function<void()>& attempt);

/// A whole document of at most max_bytes.
[[nodiscard]] std::string fetch_text(Transport& transport, const std::string& path, std::uint64_t max_bytes,
                                     const TransferOptions& options, Status& status);

/// Writes the set's files and its manifest.json into `folder` (a folder under construction). prefix: the set's place in
/// the zoo, "" if the transport's root is the set itself.
void fetch_set(Transport& transport, const std::string& prefix, const SetManifest& manifest,
               const std::filesystem::path& folder, const TransferOptions& options, Status& status);

/// "a" + "b" -> "a/b"; "" + "b" -> "b".
[[nodiscard]] std::string join_path(const std::string& prefix, const std::string& path);

}  // namespace oscar
