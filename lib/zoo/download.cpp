// SPDX-License-Identifier: MIT
#include "zoo/download.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/files.hpp"
#include "base/sha256.hpp"

namespace oscar {
namespace {

constexpr double kMaxPause = 60;

void pause(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    throw_if_interrupted();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

[[noreturn]] void throw_too_short(std::uint64_t size, std::uint64_t expected, const std::string& where) {
  throw TransientError("only " + std::to_string(size) + " of " + std::to_string(expected) + " bytes came", where,
                       "run again; if it stays so, the file in the zoo is truncated: publish it again");
}

/// Counts bytes over all files of a set; a file that is tried again takes its bytes back.
class ByteCount {
 public:
  ByteCount(Status& status, std::uint64_t total) : status_(status), total_(total) {}
  void add(std::uint64_t bytes) { report(done_ + bytes); }
  void take_back(std::uint64_t bytes) { done_ -= bytes; }

 private:
  void report(std::uint64_t done) {
    done_ = done;
    status_.progress("bytes checked:", static_cast<std::int64_t>(done_), static_cast<std::int64_t>(total_));
  }
  Status& status_;
  std::uint64_t total_, done_ = 0;
};

/// One file on its way to disk: hashed, and never longer than expected.
class IncomingFile {
 public:
  IncomingFile(const fs::path& target, const FileDigest& expected, std::string where)
      : target_(target),
        expected_(expected),
        where_(std::move(where)),
        stream_(std::fopen(target.c_str(), "wbe"), close) {
    if (stream_ == nullptr) throw_io("cannot create");
  }

  void add(std::span<const std::byte> bytes) {
    if (bytes.size() > expected_.size - size_) {
      throw TransportError(
          "there are more than the " + std::to_string(expected_.size) + " bytes that the manifest lists", where_,
          "tell who hosts the zoo");
    }
    if (std::fwrite(bytes.data(), 1, bytes.size(), stream_.get()) != bytes.size()) throw_io("cannot write");
    hash_.update(bytes);
    size_ += bytes.size();
  }

  void finish() {
    if (size_ < expected_.size) throw_too_short(size_, expected_.size, where_);
    if (std::fclose(stream_.release()) != 0) throw_io("cannot write");
    if (hash_.hex() != expected_.sha256) {
      throw TransportError("the content is not what the manifest lists: sha256 differs", where_,
                           "run again; if it stays so, the file in the zoo is damaged: publish it again");
    }
  }

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

 private:
  static void close(std::FILE* stream) { std::fclose(stream); }
  [[noreturn]] void throw_io(const char* what) {
    const int error = errno;
    throw IoError(
        std::string(what) + ": " + std::strerror(error), target_.string(),
        error == ENOSPC || error == EDQUOT ? "free some disk space, then run again" : "check the permissions");
  }

  const fs::path& target_;
  const FileDigest& expected_;
  std::string where_;
  std::unique_ptr<std::FILE, void (*)(std::FILE*)> stream_;
  Sha256 hash_;
  std::uint64_t size_ = 0;
};

void fetch_file(Transport& transport, const std::string& path, const FileDigest& expected, const fs::path& target,
                ByteCount& count) {
  IncomingFile file(target, expected, transport.where(path));
  try {
    transport.get(path, expected.size, [&](std::span<const std::byte> bytes) {
      file.add(bytes);
      count.add(bytes.size());
    });
    file.finish();
  } catch (...) {
    count.take_back(file.size());
    throw;
  }
}

}  // namespace

std::string join_path(const std::string& prefix, const std::string& path) {
  return prefix.empty() ? path : prefix + "/" + path;
}

void with_retries(const TransferOptions& options, Status& status, const std::function<void()>& attempt) {
  for (int failures = 0;; ++failures) {
    double seconds = options.first_pause_seconds * static_cast<double>(1 << std::min(failures, 10));
    try {
      return attempt();
    } catch (const TransientError& error) {
      if (failures >= options.retries) {
        throw TransportError(std::string(error.what()) + " (tried " + std::to_string(failures + 1) + " times)",
                             error.where(), error.remedy());
      }
      seconds = std::min(std::max(seconds, error.retry_after_seconds), kMaxPause);
      status.notice(std::string(error.what()) + "; trying again: " + error.where());
    }
    pause(seconds);
  }
}

std::string fetch_text(Transport& transport, const std::string& path, const ByteLimits& limits,
                       const TransferOptions& options, Status& status) {
  std::string text;
  with_retries(options, status, [&] {
    text.clear();
    transport.get(path, limits.most, [&](std::span<const std::byte> bytes) {
      if (bytes.size() > limits.most - text.size()) {
        throw TransportError("there are more than the " + std::to_string(limits.most) + " bytes that are expected",
                             transport.where(path), "check that the address is a zoo; tell who hosts it");
      }
      text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    });
    if (text.size() < limits.least) throw_too_short(text.size(), limits.least, transport.where(path));
  });
  return text;
}

void fetch_set(Transport& transport, const std::string& prefix, const SetManifest& manifest, const fs::path& folder,
               const TransferOptions& options, Status& status) {
  ByteCount count(status, manifest.total_size - manifest.text.size());
  for (const FileDigest& file : manifest.files) {
    throw_if_interrupted();
    const fs::path target = folder / file.path;
    std::error_code error;
    fs::create_directories(target.parent_path(), error);
    if (error)
      throw IoError("cannot create folder: " + error.message(), target.parent_path().string(), "choose another place");
    with_retries(options, status, [&] { fetch_file(transport, join_path(prefix, file.path), file, target, count); });
  }
  write_file(folder / kManifestName, manifest.text);
}

}  // namespace oscar
