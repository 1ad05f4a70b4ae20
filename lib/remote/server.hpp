// SPDX-License-Identifier: MIT
// One server: connections that are kept for the next request, and what is asked over them.
// Of a file there bytes have addresses, so that parts of it have names, but only what was loaded is behind them.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/places.hpp"
#include "base/status.hpp"
#include "remote/fetch.hpp"
#include "remote/transport.hpp"

namespace oscar {

class Server {
 public:
  /// `status` must outlive the server.
  Server(StoreLocation location, const TransferOptions& options, Status& status);
  virtual ~Server() = default;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Reads a whole file of up to `most` bytes. Throws DataError if it does not exist, Denied, TransportError,
  /// Interrupted.
  [[nodiscard]] std::string text(const std::string& path, std::uint64_t most);
  /// The same; nothing if the file does not exist, or may not be read: some servers do not tell the two apart.
  [[nodiscard]] std::optional<std::string> optional_text(const std::string& path, std::uint64_t most);
  /// The file at `path`, always the same object; it lives as long as the server.
  [[nodiscard]] RemoteObject& object(const std::string& path);
  /// Throws what read_ranges() throws, and DataError for a file that does not exist.
  void read(std::span<const RangeRequest> requests);
  /// Names a file in messages.
  [[nodiscard]] std::string where(const std::string& path) const;

 protected:
  /// Makes the error for a file that does not exist.
  [[nodiscard]] virtual DataError missing(const std::string& where) const;
  /// Throws DataError where the server tells apart what may not be read and what is not there; returns where it does
  /// not.
  virtual void explain_denied(const Denied&) const {}

 private:
  /// f(a transport that nobody else uses meanwhile)
  template <class F>
  void with_transport(F&& f);
  [[nodiscard]] std::optional<std::string> fetch(const std::string& path, std::uint64_t most, bool required);

  const StoreLocation location_;
  const TransferOptions options_;
  Status& status_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Transport>> idle_;
  std::map<std::string, RemoteObject> objects_;  // by path
};

class RemoteReads {
 public:
  std::map<Server*, std::vector<RangeRequest>> by_server;
};

class RemoteFile : public PlacedFile {
 public:
  /// `server` must outlive the file. Nothing is asked for yet.
  RemoteFile(Server& server, const std::string& path) : server_(server), object_(server.object(path)) {}
  ~RemoteFile() override;
  RemoteFile(const RemoteFile&) = delete;
  RemoteFile& operator=(const RemoteFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const override;
  void load_front(std::uint64_t count) override;
  void read(std::uint64_t offset, std::span<std::byte> to) const override;
  void add_to(RemoteReads& reads, std::uint64_t offset, std::span<std::byte> to) const override {
    reads.by_server[&server_].push_back(request(offset, to));
  }
  [[nodiscard]] int descriptor() const override { return -1; }
  [[nodiscard]] std::string version() const override;
  [[nodiscard]] int readers() const override;

 private:
  [[nodiscard]] RangeRequest request(std::uint64_t offset, std::span<std::byte> to) const {
    return {&object_, offset, to};
  }
  /// Asks for a byte of a file of which nothing is known.
  void learn() const;
  void reserve_addresses() const;

  Server& server_;
  RemoteObject& object_;
  mutable std::mutex mutex_;
  mutable std::byte* addresses_ = nullptr;  // reserved, not there; null before anybody asked
  mutable std::uint64_t size_ = 0, loaded_ = 0;
};

}  // namespace oscar
