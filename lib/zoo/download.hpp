// SPDX-License-Identifier: MIT
// Bytes of known size and hash, out of a transport that may fail. Whatever does not match is refused, and no more is
// written than was announced. Files come at the same time, large ones in pieces; transient failures are tried again
// from where they happened, a few times, with growing pauses.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "remote/retries.hpp"
#include "remote/transport.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

struct ByteLimits {
  std::uint64_t least = 0, most = 0;
};

/// Fetches a whole document. Fewer bytes than limits.least are a lost connection, more than limits.most are refused.
[[nodiscard]] std::string fetch_text(Transport& transport, const std::string& path, const ByteLimits& limits,
                                     const TransferOptions& options, Status& status);

/// A document that may not be there.
struct Document {
  std::string text;
  std::exception_ptr absent;  // the NotFound or Denied that says so; null: it is there
  bool denied = false;        // Denied: it may be there for others

  /// Returns the text, or throws the error that there was instead.
  [[nodiscard]] const std::string& required() const;
};
/// Several documents of at most max_bytes each, at the same time.
[[nodiscard]] std::vector<Document> fetch_texts(Transport& transport, const std::vector<std::string>& paths,
                                                std::uint64_t max_bytes, const TransferOptions& options,
                                                Status& status);

/// A page of a listing, and the Link header that came with it.
struct Page {
  std::string text, link;
};
[[nodiscard]] Page fetch_page(Transport& transport, const std::string& path, const std::string& query,
                              const ByteLimits& limits, const TransferOptions& options, Status& status);

struct FetchOptions {
  TransferOptions transfer;
  /// Keep what an earlier attempt left in the folder, and ask for the rest only.
  bool resume = false;
};

/// Writes these files into `folder` (a folder under construction), each checked. prefix: their place in the zoo, "" if
/// the transport's root is it.
void fetch_files(Transport& transport, const std::string& prefix, const std::vector<FileDigest>& files,
                 const std::filesystem::path& folder, const FetchOptions& options, Status& status);

/// The set's files and its manifest.json into `folder`.
void fetch_set(Transport& transport, const std::string& prefix, const SetManifest& manifest,
               const std::filesystem::path& folder, const FetchOptions& options, Status& status);

/// "a" + "b" -> "a/b"; "" + "b" -> "b"; "a" + "" -> "a".
[[nodiscard]] std::string join_path(const std::string& prefix, const std::string& path);

}  // namespace oscar
