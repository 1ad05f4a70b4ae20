// SPDX-License-Identifier: MIT
// One file on its way to disk, in pieces: large files in several at once if the server sends ranges, whatever is there
// from an earlier attempt not again. It is hashed as it comes, and never longer than expected.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/sha256.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

class IncomingFile {
 public:
  /// A stretch of the file that one request fetches.
  struct Piece {
    std::uint64_t begin = 0, end = 0, received = 0;
    bool busy = false;
    int failures = 0;
    std::uint64_t received_at_failure = 0;
    std::chrono::steady_clock::time_point not_before{};
    [[nodiscard]] std::uint64_t offset() const { return begin + received; }
    [[nodiscard]] bool complete() const { return offset() == end; }
  };
  using Count = std::function<void(std::int64_t bytes)>;

  /// resume: keep what is there already. count: told of bytes that come (and, negative, that are thrown away). Throws
  /// IoError.
  IncomingFile(std::filesystem::path target, FileDigest expected, std::string where, bool resume, Count count);
  ~IncomingFile();
  IncomingFile(const IncomingFile&) = delete;
  IncomingFile& operator=(const IncomingFile&) = delete;

  /// Returns a piece to ask for now, marked busy; null: none at the moment. split: several pieces may be under way at
  /// once.
  [[nodiscard]] Piece* next_piece(bool split);
  /// The next bytes of a piece. partial: the server sends ranges. Throws TransportError (too many), IoError.
  void take(Piece& piece, std::span<const std::byte> bytes, bool partial);
  /// The answer for a piece has ended. Throws TransientError if it was too short.
  void end_piece(Piece& piece);
  /// The answer for a piece failed: what is missing comes from another one.
  void continue_later(const Piece& piece) { mixed_ = mixed_ || piece.received > 0; }
  /// True once every byte is there and the hash is right. Throws TransportError if it is wrong; what was put together
  /// from several answers is fetched again once, in a fresh attempt.
  [[nodiscard]] bool finish();

  [[nodiscard]] bool finished() const noexcept { return finished_; }
  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  void open();
  void restart();
  void hash_complete_pieces();
  [[noreturn]] void throw_io(const char* what) const;

  std::filesystem::path target_;
  FileDigest expected_;
  std::string where_;
  bool resume_;
  Count count_;
  int descriptor_ = -1;
  std::deque<Piece> pieces_;   // without gaps, from 0
  std::uint64_t planned_ = 0;  // where the last of them ends
  bool ranges_ = false;        // the server is known to send ranges
  bool mixed_ = false;         // put together from several answers
  bool restarted_ = false, finished_ = false;
  std::uint64_t hashed_ = 0;  // so many bytes, from 0
  std::unique_ptr<Sha256> hash_ = std::make_unique<Sha256>();
};

}  // namespace oscar
