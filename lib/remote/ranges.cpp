// SPDX-License-Identifier: MIT
#include "remote/ranges.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "remote/retries.hpp"

namespace oscar {
namespace {

using Clock = std::chrono::steady_clock;

/// Large enough that asking costs little beside it, small enough that several are under way at a time.
constexpr std::uint64_t kMostPieceBytes = std::uint64_t{8} << 20, kLeastPieceBytes = std::uint64_t{4} << 20;
/// A server that cuts the line after at least so much is not one that does not work.
constexpr std::uint64_t kWorthwhile = std::uint64_t{64} << 10;

class Download {
 public:
  Download(Transport& transport, std::span<const RangeRequest> requests, const TransferOptions& options, Status& status)
      : transport_(transport), options_(options), status_(status) {
    std::uint64_t total = 0;
    for (const RangeRequest& request : requests) total += request.to.size();
    const auto connections = static_cast<std::uint64_t>(std::max(1, transport.concurrency()));
    const std::uint64_t step = std::clamp(total / connections, kLeastPieceBytes, kMostPieceBytes);
    for (const RangeRequest& request : requests) {
      if (request.count != nullptr) *request.count = 0;
      for (std::uint64_t begin = 0; begin < request.to.size(); begin += step) {
        const std::uint64_t size = std::min<std::uint64_t>(step, request.to.size() - begin);
        pieces_.push_back({request.object, request.offset + begin, request.to.subspan(begin, size), request.count});
      }
    }
    left_ = pieces_.size();
  }

  void run() {
    transport_.get_pieces({[this] { return next(); }, [this] { return left_ == 0; }});
  }

 private:
  struct Piece {
    RemoteObject* object;
    std::uint64_t offset;
    std::span<std::byte> to;
    std::uint64_t* count;
    std::uint64_t received = 0, received_before = 0, received_at_failure = 0;
    bool busy = false, done = false;
    int failures = 0;
    Clock::time_point not_before{};
  };

  std::optional<PieceRequest> next() {
    const auto now = Clock::now();
    while (first_ < pieces_.size() && pieces_[first_].done) ++first_;
    for (std::size_t i = first_; i < pieces_.size(); ++i) {
      Piece& piece = pieces_[i];
      if (!piece.busy && !piece.done && piece.not_before <= now) return request(piece);
    }
    return std::nullopt;
  }

  PieceRequest request(Piece& piece) {
    piece.busy = true;
    piece.received_before = piece.received;
    const std::uint64_t offset = piece.offset + piece.received, length = piece.to.size() - piece.received;
    PieceRequest request;
    request.path = piece.object->path();
    request.offset = offset;
    request.length = length;
    request.max_bytes = INT64_MAX;  // what is too much, learn() finds
    request.begin = [this, &piece, offset, length](const PieceAnswer& answer) {
      piece.object->learn(answer, offset, length, where(piece));
    };
    request.sink = [this, &piece](std::span<const std::byte> bytes, bool) { take(piece, bytes); };
    request.done = [this, &piece](std::exception_ptr failure) { end(piece, std::move(failure)); };
    request.if_match = piece.object->condition();
    return request;
  }

  void take(Piece& piece, std::span<const std::byte> bytes) const {
    if (bytes.size() > piece.to.size() - piece.received) {
      throw TransportError("the server sends more than was asked for", where(piece),
                           "it does not send ranges as RFC 9110 has them: use another server");
    }
    std::memcpy(piece.to.data() + piece.received, bytes.data(), bytes.size());
    piece.received += bytes.size();
  }

  void end(Piece& piece, std::exception_ptr failure) {
    piece.busy = false;
    try {
      if (failure != nullptr) std::rethrow_exception(failure);
      if (is_complete(piece)) return finish(piece);
      if (piece.received > piece.received_before) return;  // less than was asked for, as servers may: the rest is next
      throw TransientError("only " + std::to_string(piece.received) + " of " +
                               plural(static_cast<std::int64_t>(piece.to.size()), "byte") + " came",
                           where(piece), "run again; if it stays so, the server is at fault");
    } catch (const TransientError& error) {
      if (piece.received >= piece.received_at_failure + kWorthwhile) piece.failures = 0;
      piece.received_at_failure = piece.received;
      const double seconds = pause_after(error, piece.failures, options_, status_);
      piece.not_before =
          Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    }
  }

  [[nodiscard]] bool is_complete(const Piece& piece) const {
    if (piece.received == piece.to.size()) return true;
    if (piece.offset + piece.received < piece.object->size().value_or(0)) return false;
    if (piece.count != nullptr) return true;
    throw DataError("the file ends before its data does", where(piece), "write or upload it again");
  }

  void finish(Piece& piece) {
    if (piece.count != nullptr) *piece.count += piece.received;
    piece.done = true;
    --left_;
  }

  [[nodiscard]] std::string where(const Piece& piece) const { return transport_.where(piece.object->path()); }

  Transport& transport_;
  const TransferOptions& options_;
  Status& status_;
  std::deque<Piece> pieces_;
  std::size_t first_ = 0, left_ = 0;  // pieces before first_ are done
};

}  // namespace

std::optional<std::uint64_t> RemoteObject::size() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

std::string RemoteObject::version() const {
  const std::lock_guard lock(mutex_);
  return version_.value_or("");
}

std::string RemoteObject::condition() const {
  const std::string known = version();
  return known.starts_with('"') ? known : "";  // quoted, and not marked as weak: what If-Match can compare
}

void RemoteObject::learn(const PieceAnswer& answer, std::uint64_t offset, std::uint64_t length,
                         const std::string& where) {
  const bool whole = !answer.partial && offset == 0 && answer.size && *answer.size <= length;
  if (!answer.partial && !whole) {
    throw TransportError("the server sends whole files only, not the ranges that are asked for", where,
                         "use a server that sends ranges (nginx, Apache), or copy the files to disk");
  }
  if (!answer.size || (answer.partial && answer.offset != offset)) {
    throw TransportError("the answer does not say that it is the range that was asked for", where,
                         "use a server that sends ranges as RFC 9110 has them");
  }
  learn(answer, where);
}

void RemoteObject::learn(const PieceAnswer& answer, const std::string& where) {
  const std::lock_guard lock(mutex_);
  const bool other_size = size_ && answer.size && *size_ != *answer.size;
  if (other_size || (version_ && *version_ != answer.version)) throw Changed(where);
  if (answer.size) size_ = answer.size;
  version_ = answer.version;
}

void read_ranges(Transport& transport, std::span<const RangeRequest> requests, const TransferOptions& options,
                 Status& status) {
  Download(transport, requests, options, status).run();
}

}  // namespace oscar
