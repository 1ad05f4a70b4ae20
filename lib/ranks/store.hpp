// SPDX-License-Identifier: MIT
// The key-value store by which ranks talk: c10d's TCPStore, in a plug-in (store_torch.cpp). For lib/ranks only.
// Sums, samples of rows and finished layers go through it, some hundred kilobytes to some megabytes each. c10d's Gloo
// needs Gloo's own headers, which torch does not ship.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace oscar {

/// One connection. Everything throws TransportError if the store does not answer any more.
class RankStore {
 public:
  virtual ~RankStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Does not wait for the key.
  [[nodiscard]] virtual std::optional<std::string> find(const std::string& key) = 0;
  virtual void remove(const std::string& key) = 0;
  /// A counter's new value, which find() gives as text.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  /// Another connection to the same store.
  [[nodiscard]] virtual std::unique_ptr<RankStore> clone() = 0;
};

struct StoreAddress {
  std::string host;
  int port = 0;
  bool serve = false;       // else connect to the one that serves
  std::string prefix;       // of all keys
  double join_seconds = 0;  // how long to wait for it
};

}  // namespace oscar

/// The plug-in's one export.
extern "C" oscar::RankStore* oscar_open_rank_store(const oscar::StoreAddress* address);
