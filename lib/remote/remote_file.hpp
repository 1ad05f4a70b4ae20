// SPDX-License-Identifier: MIT
// A file at a server. Its bytes have addresses, so that parts of it have names, but only what was loaded is behind
// them.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "base/places.hpp"
#include "remote/server.hpp"

namespace oscar {

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
