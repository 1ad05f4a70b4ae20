// SPDX-License-Identifier: MIT
#include "zoo/incoming_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "remote/transport.hpp"

namespace oscar {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;
constexpr std::size_t kHashBlock = std::size_t{1} << 20;

}  // namespace

IncomingFile::IncomingFile(fs::path target, FileDigest expected, std::string where, bool resume, Count count)
    : target_(std::move(target)),
      expected_(std::move(expected)),
      where_(std::move(where)),
      resume_(resume),
      count_(std::move(count)) {
  std::error_code error;
  fs::create_directories(target_.parent_path(), error);
  if (error) {
    throw IoError("cannot create folder: " + error.message(), target_.parent_path().string(), "choose another place");
  }
  open();
}

/// What is there without gaps stays for the next attempt; what lies behind a gap could not be told from it.
IncomingFile::~IncomingFile() {
  if (descriptor_ < 0) return;
  std::uint64_t whole = 0;
  for (const Piece& piece : pieces_) {
    whole = piece.offset();
    if (!piece.complete()) break;
  }
  if (!finished_) (void)!::ftruncate(descriptor_, static_cast<off_t>(whole));
  ::close(descriptor_);
}

void IncomingFile::open() {
  descriptor_ = ::open(target_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (resume_ ? 0 : O_TRUNC), 0644);
  if (descriptor_ < 0) throw_io("cannot create");
  const off_t there = ::lseek(descriptor_, 0, SEEK_END);
  if (there <= 0) return;
  if (static_cast<std::uint64_t>(there) > expected_.size) {
    restart();
    restarted_ = false;  // that was not ours
    return;
  }
  planned_ = static_cast<std::uint64_t>(there);
  pieces_.push_back({0, planned_, planned_, false, 0, 0, {}});
  mixed_ = true;
  count_(there);
}

void IncomingFile::restart() {
  std::int64_t lost = 0;
  for (const Piece& piece : pieces_) lost += static_cast<std::int64_t>(piece.received);
  count_(-lost);
  if (::ftruncate(descriptor_, 0) != 0) throw_io("cannot write");
  pieces_.clear();
  planned_ = 0;
  hashed_ = 0;
  hash_ = std::make_unique<Sha256>();
  mixed_ = false;
  restarted_ = true;
}

IncomingFile::Piece* IncomingFile::next_piece(bool split) {
  const auto now = std::chrono::steady_clock::now();
  bool waiting = false;
  for (Piece& piece : pieces_) {
    if (piece.complete() && !piece.busy) continue;
    waiting = true;
    if (piece.busy || piece.not_before > now) continue;
    piece.busy = true;
    return &piece;
  }
  // The first answer tells whether the server sends ranges; until then nothing else is asked of it.
  if (planned_ == expected_.size || (waiting && !ranges_)) return nullptr;
  const std::uint64_t rest = expected_.size - planned_;
  const std::uint64_t size = split && rest > kPieceBytes ? kPieceBytes : rest;
  pieces_.push_back({planned_, planned_ + size, 0, true, 0, 0, {}});
  planned_ += size;
  mixed_ = mixed_ || size < expected_.size;
  return &pieces_.back();
}

void IncomingFile::take(Piece& piece, std::span<const std::byte> bytes, bool partial) {
  ranges_ = ranges_ || partial;
  if (!partial && &piece == &pieces_.back() && planned_ < expected_.size) piece.end = planned_ = expected_.size;
  if (bytes.size() > piece.end - piece.offset()) {
    throw TransportError("there are more than the " + plural(static_cast<std::int64_t>(expected_.size), "byte") +
                             " that the manifest lists",
                         where_, "tell who hosts the zoo");
  }
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(piece.offset()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_io("cannot write");
    if (piece.offset() == hashed_) {
      hash_->update(bytes.first(static_cast<std::size_t>(count)));
      hashed_ += static_cast<std::uint64_t>(count);
    }
    piece.received += static_cast<std::uint64_t>(count);
    count_(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void IncomingFile::end_piece(Piece& piece) {
  if (piece.complete()) return;
  const std::uint64_t there = piece.end == expected_.size ? piece.offset() : piece.received;
  const std::uint64_t wanted = piece.end == expected_.size ? expected_.size : piece.end - piece.begin;
  throw TransientError(
      "only " + std::to_string(there) + " of " + plural(static_cast<std::int64_t>(wanted), "byte") + " came", where_,
      "run again; if it stays so, the file in the zoo is truncated: publish it again");
}

/// What came in order is hashed by now; what came before its turn is read again.
void IncomingFile::hash_complete_pieces() {
  std::vector<std::byte> block;
  for (const Piece& piece : pieces_) {
    if (!piece.complete()) return;
    while (hashed_ < piece.end) {
      block.resize(std::min<std::uint64_t>(kHashBlock, piece.end - hashed_));
      read_at(descriptor_, hashed_, block);
      hash_->update(block);
      hashed_ += block.size();
    }
  }
}

bool IncomingFile::finish() {
  if (finished_) return true;
  hash_complete_pieces();
  // A piece can be complete while its request has not ended yet.
  const bool busy = std::ranges::any_of(pieces_, [](const Piece& piece) { return piece.busy; });
  if (busy || planned_ < expected_.size || hashed_ < expected_.size) return false;
  const bool right = expected_.git_oid.empty() ? hash_->hex() == expected_.sha256
                                               : git_blob_sha1(read_text(target_)) == expected_.git_oid;
  if (!right) {
    if (mixed_ && !restarted_) {
      restart();
      return false;
    }
    throw TransportError("the content is not what the manifest lists: sha256 differs", where_,
                         "run again; if it stays so, the file in the zoo is damaged: publish it again");
  }
  finished_ = true;
  if (::close(std::exchange(descriptor_, -1)) != 0) throw_io("cannot write");
  return true;
}

void IncomingFile::throw_io(const char* what) const {
  const int error = errno;
  throw IoError(std::string(what) + ": " + std::strerror(error), target_.string(),
                error == ENOSPC || error == EDQUOT || error == EFBIG ? "free some disk space, then run again"
                                                                     : "check the permissions");
}

}  // namespace oscar
