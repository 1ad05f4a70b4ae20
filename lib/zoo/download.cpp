// SPDX-License-Identifier: MIT
#include "zoo/download.hpp"

#include <algorithm>
#include <chrono>
#include <deque>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "zoo/incoming_file.hpp"

namespace oscar {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void throw_too_short(std::uint64_t size, std::uint64_t expected, const std::string& where) {
  throw TransientError(
      "only " + std::to_string(size) + " of " + plural(static_cast<std::int64_t>(expected), "byte") + " came", where,
      "run again; if it stays so, the file in the zoo is truncated: publish it again");
}

/// Throws if the text would become larger than `most`.
void append(std::string& text, std::span<const std::byte> bytes, std::uint64_t most, const std::string& where) {
  if (bytes.size() > most - text.size()) {
    throw TransportError(
        "there are more than the " + plural(static_cast<std::int64_t>(most), "byte") + " that are expected", where,
        "check that the address is a zoo; tell who hosts it");
  }
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

constexpr std::uint64_t kWorthwhile = std::uint64_t{64} << 10;

/// All files of a set as pieces that a transport asks for.
class SetDownload {
 public:
  SetDownload(Transport& transport, const std::string& prefix, std::vector<FileDigest> files, const fs::path& folder,
              const FetchOptions& options, Status& status)
      : transport_(transport), options_(options), status_(status) {
    // The largest first, on the connections that are there already; small ones find their place beside them.
    std::ranges::stable_sort(files, std::greater(), &FileDigest::size);
    for (const FileDigest& file : files) total_ += static_cast<std::int64_t>(file.size);
    for (const FileDigest& file : files) {
      const std::string path = join_path(prefix, file.path);
      paths_.push_back({path, file.size});
      files_.emplace_back(folder / file.path, file, transport.where(path), options.resume,
                          [this](std::int64_t bytes) { count(bytes); });
    }
  }

  void run() {
    for (IncomingFile& file : files_) (void)file.finish();  // empty ones, and what an earlier attempt completed
    transport_.get_pieces({[this] { return next(); }, [this] { return finished(); }});
  }

 private:
  struct Remote {
    std::string path;
    std::uint64_t size;
  };

  std::optional<PieceRequest> next() {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      IncomingFile& file = files_[i];
      if (file.finished()) continue;
      IncomingFile::Piece* piece = file.next_piece(transport_.concurrency() > 1);
      if (piece != nullptr) return request(paths_[i], file, *piece);
    }
    return std::nullopt;
  }

  PieceRequest request(const Remote& remote, IncomingFile& file, IncomingFile::Piece& piece) {
    const bool rest = piece.end == remote.size;
    return {remote.path,
            piece.offset(),
            rest ? std::nullopt : std::optional(piece.end - piece.offset()),
            remote.size,
            [&file, &piece](std::span<const std::byte> bytes, bool partial) { file.take(piece, bytes, partial); },
            [this, &file, &piece](std::exception_ptr failure) { done(file, piece, std::move(failure)); }};
  }

  void done(IncomingFile& file, IncomingFile::Piece& piece, std::exception_ptr failure) {
    piece.busy = false;
    try {
      if (failure != nullptr) std::rethrow_exception(failure);
      file.end_piece(piece);
    } catch (const TransientError& error) {
      // A server that cuts the line now and then is not one that does not work.
      if (piece.received >= piece.received_at_failure + kWorthwhile) piece.failures = 0;
      piece.received_at_failure = piece.received;
      const double seconds = pause_after(error, piece.failures, options_.transfer, status_);
      piece.not_before =
          Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
      file.continue_later(piece);
    }
    (void)file.finish();
  }

  [[nodiscard]] bool finished() const {
    return std::all_of(files_.begin(), files_.end(), [](const IncomingFile& file) { return file.finished(); });
  }

  void count(std::int64_t bytes) {
    done_ += bytes;
    status_.progress("bytes checked:", done_, total_);
  }

  Transport& transport_;
  const FetchOptions& options_;
  Status& status_;
  std::int64_t total_ = 0, done_ = 0;
  std::vector<Remote> paths_;
  std::deque<IncomingFile> files_;
};

}  // namespace

std::string join_path(const std::string& prefix, const std::string& path) {
  if (prefix.empty() || path.empty()) return prefix + path;
  return prefix + "/" + path;
}

std::string fetch_text(Transport& transport, const std::string& path, const ByteLimits& limits,
                       const TransferOptions& options, Status& status) {
  return fetch_page(transport, path, "", limits, options, status).text;
}

Page fetch_page(Transport& transport, const std::string& path, const std::string& query, const ByteLimits& limits,
                const TransferOptions& options, Status& status) {
  Page page;
  with_retries(options, status, [&] {
    page.text.clear();
    page.link = transport.get_page(path, query, limits.most, [&](std::span<const std::byte> bytes) {
      append(page.text, bytes, limits.most, transport.where(path));
    });
    if (page.text.size() < limits.least) throw_too_short(page.text.size(), limits.least, transport.where(path));
  });
  return page;
}

const std::string& Document::required() const {
  if (absent != nullptr) std::rethrow_exception(absent);
  return text;
}

std::vector<Document> fetch_texts(Transport& transport, const std::vector<std::string>& paths, std::uint64_t max_bytes,
                                  const TransferOptions& options, Status& status) {
  std::vector<Document> documents;
  with_retries(options, status, [&] {
    documents.assign(paths.size(), {});
    std::size_t begun = 0, ended = 0;
    const auto next = [&]() -> std::optional<PieceRequest> {
      if (begun == paths.size()) return std::nullopt;
      const std::string& path = paths[begun];
      Document& document = documents[begun++];
      const auto take = [&](std::span<const std::byte> bytes, bool) {
        append(document.text, bytes, max_bytes, transport.where(path));
      };
      const auto done = [&](std::exception_ptr failure) {
        ++ended;
        try {
          if (failure != nullptr) std::rethrow_exception(failure);
        } catch (const NotFound&) {
          document = {"", failure, false};
        } catch (const Denied&) {
          document = {"", failure, true};
        }
      };
      return PieceRequest{path, 0, std::nullopt, max_bytes, take, done};
    };
    transport.get_pieces({next, [&] { return ended == paths.size(); }});
  });
  return documents;
}

void fetch_files(Transport& transport, const std::string& prefix, const std::vector<FileDigest>& files,
                 const fs::path& folder, const FetchOptions& options, Status& status) {
  SetDownload(transport, prefix, files, folder, options, status).run();
}

void fetch_set(Transport& transport, const std::string& prefix, const SetManifest& manifest, const fs::path& folder,
               const FetchOptions& options, Status& status) {
  fetch_files(transport, prefix, manifest.files, folder, options, status);
  write_unsynced(folder / kManifestName, manifest.text);
}

}  // namespace oscar
