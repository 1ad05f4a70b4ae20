// SPDX-License-Identifier: MIT
// The processes that make one result together: named by rank, joined by a store, and watched. A rank that ends before
// its work is done ends the others too, with its name and, if it could still say it, its reason: throw_if_interrupted()
// throws RankFailed in all of them. Non-goals: collectives on device memory, going on without a rank.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/errors.hpp"
#include "ranks/place.hpp"

namespace oscar {

struct RankOptions {
  /// How long all ranks may take to come together. One that came and is gone again is noticed before.
  double join_seconds = 120;
  /// A rank that shows no sign of life for so long is gone.
  double silent_seconds = 15;
  /// Called from a thread of its own if this process does not end by itself after it failed or another rank did: it
  /// hangs in some read, for example. Must end the process.
  std::function<void(const RankFailed&)> give_up;
};

class Ranks {
 public:
  /// Waits for all others. Throws TransportError, or RankFailed that names those who did not come.
  Ranks(const Place& place, RankOptions options);
  /// Ends this rank's part; without leave() before it, the others take that for a failure.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  /// Returns the name of a rank for messages: "rank 1 (node7, process 123)".
  [[nodiscard]] const std::string& name(int rank) const;

  /// How many ranks of this machine may run on the very cores that this one may run on, itself among them.
  [[nodiscard]] int sharers_of_cores() const;

  /// Shows a value, of any size, to all ranks. Each key once.
  void put(const std::string& key, const std::string& value);
  /// Waits for it. Throws RankFailed and Interrupted.
  [[nodiscard]] std::string get(const std::string& key);
  /// Waits for a value as get() does, and removes it.
  [[nodiscard]] std::string take(const std::string& key);

  /// Tells the others why this one ends.
  void fail(const std::string& why) noexcept;
  /// This one's work is done. Rank 0 waits for the others to say so.
  void leave();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
