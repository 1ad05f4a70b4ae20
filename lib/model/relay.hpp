// SPDX-License-Identifier: MIT
// How the hidden states of each sequence go from the process that ran a layer to the one that runs the next: between
// GPUs where decoders have a link, else through the host and the processes' common store.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/task_queue.hpp"
#include "model/decoder.hpp"
#include "model/link_end.hpp"
#include "model/share.hpp"

namespace oscar {

class Relay {
 public:
  /// Agrees with both neighbours on the way; links open meanwhile. `decoder` must outlive this.
  Relay(ModelShare share, Decoder& decoder);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Throws RankFailed for links that do not open in time, or break.
  void wait_until_open();
  /// After that. Hidden states of a sequence before `layer`; waits for them. Of a layer, sequences are received in the
  /// order in which they are sent. Throws what the share's take() throws, RankFailed and Interrupted.
  [[nodiscard]] std::unique_ptr<Rows> receive(int layer, std::size_t sequence, std::span<const std::int32_t> tokens);
  /// To the process that runs `layer`. Does not wait for it; throws what sending earlier ones threw.
  void send(int layer, std::size_t sequence, std::unique_ptr<Rows> hidden);
  /// Throws RankFailed or Interrupted if what arrived may be less than what was sent.
  void require_whole() const;
  /// Once this process is done with all of its layers: waits until its neighbours are too, whom a link that ends would
  /// cut off.
  void finish();

 private:
  void open_links();
  void open(std::optional<LinkEnd>& end, const std::string& name, bool sends, int peer);
  void require_same_type() const;
  void greet();
  void pass_on(int layer, std::size_t sequence, const Rows& hidden);

  ModelShare share_;
  Decoder& decoder_;
  std::optional<LinkEnd> from_previous_, to_next_;  // nothing: through the host
  bool greeted_ = false;
  std::mutex one_transfer_;  // at a time
  TaskQueue sending_;        // last, since it uses the others
};

}  // namespace oscar
