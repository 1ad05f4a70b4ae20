// SPDX-License-Identifier: MIT
#include "remote/fetch.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMaxPauseSeconds = 60;
/// A server that cuts the line after at least so much is not one that does not work.
constexpr std::uint64_t kWorthwhile = std::uint64_t{64} << 10;
/// Large enough that asking costs little beside it, small enough that several are under way at a time.
constexpr std::uint64_t kMostPieceBytes = std::uint64_t{8} << 20, kLeastPieceBytes = std::uint64_t{4} << 20;

/// When to try again after another failure, those before it counted in `failures`; throws when it was the last one.
Clock::time_point next_try(const TransientError& error, int& failures, const TransferOptions& options, Status& status) {
  if (failures >= options.retries) {
    throw TransportError(std::string(error.what()) + " (tried " + std::to_string(failures + 1) + " times)",
                         error.where(), error.remedy());
  }
  status.notice(std::string(error.what()) + "; trying again: " + error.where());
  const double pause = options.first_pause_seconds * static_cast<double>(1 << std::min(failures++, 10));
  const std::chrono::duration<double> seconds(std::min(std::max(pause, error.retry_after_seconds), kMaxPauseSeconds));
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
}

/// All fetches as requests that a transport asks for.
class TransferRun {
 public:
  TransferRun(std::span<Transfer* const> wanted, const TransferOptions& options, Status& status)
      : options_(options), status_(status), left_(wanted.size()) {
    for (Transfer* transfer : wanted) jobs_.push_back({transfer});
  }

  [[nodiscard]] bool finished() const { return left_ == 0; }

  std::optional<Request> next() {
    while (first_ < jobs_.size() && jobs_[first_].done) ++first_;
    for (std::size_t i = first_; i < jobs_.size(); ++i) {
      Job& job = jobs_[i];
      if (job.busy || job.done || job.not_before > Clock::now()) continue;
      job.busy = true;
      Request request = job.transfer->request();
      request.done = [this, &job](std::exception_ptr failure) { end(job, std::move(failure)); };
      return request;
    }
    return std::nullopt;
  }

 private:
  struct Job {
    Transfer* transfer;
    bool busy = false, done = false;
    int failures = 0;
    std::uint64_t received_at_failure = 0;
    Clock::time_point not_before{};
  };

  void end(Job& job, std::exception_ptr failure) {
    job.busy = false;
    try {
      if (failure != nullptr) std::rethrow_exception(failure);
      job.done = job.transfer->complete();
      left_ -= job.done ? 1 : 0;
    } catch (const TransientError& error) {
      const std::uint64_t received = job.transfer->received();
      if (received >= job.received_at_failure + kWorthwhile) job.failures = 0;
      job.received_at_failure = received;
      job.not_before = next_try(error, job.failures, options_, status_);
    }
  }

  const TransferOptions& options_;
  Status& status_;
  std::vector<Job> jobs_;
  std::size_t first_ = 0, left_;  // jobs before first_ are done
};

class TextTransfer : public Transfer {
 public:
  TextTransfer(const Transport& transport, const std::string& path, const ByteLimits& limits, RemoteObject* file)
      : path_(path), where_(transport.where(path)), limits_(limits), file_(file) {}

  Request request() override {
    text_.clear();
    Request request{path_, 0, std::nullopt, limits_.most};
    request.sink = [this](std::span<const std::byte> bytes) { take(bytes); };
    if (file_ == nullptr) return request;
    request.begin = [this](const AnswerHeader& answer) { file_->learn(answer, where_); };
    request.if_match = file_->condition();
    return request;
  }

  bool complete() override {
    if (text_.size() >= limits_.least) return true;
    throw TransientError("only " + std::to_string(text_.size()) + " of " + plural(limits_.least, "byte") + " came",
                         where_, "run again; if it stays so, the file is truncated there: publish it again");
  }

  [[nodiscard]] std::uint64_t received() const override { return 0; }
  std::string& text() { return text_; }

 private:
  void take(std::span<const std::byte> bytes) {
    if (bytes.size() > limits_.most - text_.size()) {
      throw TransportError("there are more than the " + plural(limits_.most, "byte") + " that are expected", where_,
                           "check that the address is the right one; tell who hosts it");
    }
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  std::string path_, where_, text_;
  ByteLimits limits_;
  RemoteObject* file_;
};

/// A piece of a range, into memory.
class PieceTransfer : public Transfer {
 public:
  PieceTransfer(const Transport& transport, const RangeRequest& range, std::uint64_t begin, std::uint64_t size)
      : object_(*range.object),
        where_(transport.where(range.object->path())),
        offset_(range.offset + begin),
        to_(range.to.subspan(begin, size)) {}

  Request request() override {
    before_ = received_;
    const std::uint64_t offset = offset_ + received_, length = to_.size() - received_;
    Request request{object_.path(), offset, length, INT64_MAX, object_.condition()};  // too much is found by learn()
    request.begin = [=, this](const AnswerHeader& answer) { object_.learn(answer, offset, length, where_); };
    request.sink = [this](std::span<const std::byte> bytes) { take(bytes); };
    return request;
  }

  bool complete() override {
    if (received_ == to_.size()) return true;
    if (offset_ + received_ < object_.size().value_or(0)) {
      if (received_ > before_) return false;  // less than was asked for, as servers may: the rest is next
      throw TransientError("only " + std::to_string(received_) + " of " + plural(to_.size(), "byte") + " came", where_,
                           "run again; if it stays so, the server is at fault");
    }
    throw DataError("the file ends before its data does", where_, "write or upload it again");
  }

  [[nodiscard]] std::uint64_t received() const override { return received_; }

 private:
  void take(std::span<const std::byte> bytes) {
    if (bytes.size() > to_.size() - received_) {
      throw TransportError("the server sends more than was asked for", where_,
                           "it does not send ranges as RFC 9110 has them: use another server");
    }
    std::memcpy(to_.data() + received_, bytes.data(), bytes.size());
    received_ += bytes.size();
  }

  RemoteObject& object_;
  std::string where_;
  std::uint64_t offset_;
  std::span<std::byte> to_;
  std::uint64_t received_ = 0, before_ = 0;
};

}  // namespace

void fetch_all(Transport& transport, std::span<Transfer* const> wanted, const TransferOptions& options,
               Status& status) {
  TransferRun run(wanted, options, status);
  transport.run({[&] { return run.next(); }, [&] { return run.finished(); }});
}

void with_retries(const TransferOptions& options, Status& status, const std::function<void()>& attempt) {
  for (int failures = 0;;) {
    Clock::time_point end;
    try {
      return attempt();
    } catch (const TransientError& error) {
      end = next_try(error, failures, options, status);
    }
    for (; Clock::now() < end; std::this_thread::sleep_for(std::chrono::milliseconds(20))) throw_if_interrupted();
  }
}

std::string fetch_text(Transport& transport, const std::string& path, const ByteLimits& limits,
                       const TransferOptions& options, Status& status, RemoteObject* file) {
  TextTransfer text(transport, path, limits, file);
  Transfer* const only = &text;
  fetch_all(transport, {&only, 1}, options, status);
  return std::move(text.text());
}

void read_ranges(Transport& transport, std::span<const RangeRequest> requests, const TransferOptions& options,
                 Status& status) {
  std::uint64_t total = 0;
  for (const RangeRequest& request : requests) total += request.to.size();
  const auto connections = static_cast<std::uint64_t>(std::max(1, transport.concurrency()));
  const std::uint64_t step = std::clamp(total / connections, kLeastPieceBytes, kMostPieceBytes);
  std::deque<PieceTransfer> pieces;
  for (const RangeRequest& request : requests) {
    for (std::uint64_t begin = 0; begin < request.to.size(); begin += step) {
      pieces.emplace_back(transport, request, begin, std::min<std::uint64_t>(step, request.to.size() - begin));
    }
  }
  std::vector<Transfer*> wanted;
  for (PieceTransfer& piece : pieces) wanted.push_back(&piece);
  fetch_all(transport, wanted, options, status);
}

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

void RemoteObject::learn(const AnswerHeader& answer, std::uint64_t offset, std::uint64_t length,
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

void RemoteObject::learn(const AnswerHeader& answer, const std::string& where) {
  const std::lock_guard lock(mutex_);
  const bool other_size = size_ && answer.size && *size_ != *answer.size;
  if (other_size || (version_ && *version_ != answer.version)) throw Changed(where);
  if (answer.size) size_ = answer.size;
  version_ = answer.version;
}

}  // namespace oscar
