// SPDX-License-Identifier: MIT
// How the hidden states of each sequence go from the process that ran a layer to the one that runs the next: between
// GPUs where decoders have a link, else through the host and the processes' common store.
#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <string>

#include "model/decoder.hpp"
#include "model/share.hpp"

namespace oscar {

class Relay {
 public:
  /// Agrees with both neighbours on the way; links open meanwhile. `decoder` must outlive this.
  Relay(ModelShare share, Decoder& decoder);

  void wait_until_open();
  /// After that. Hidden states of a sequence before `layer`; waits for them. Of a layer, sequences are received in the
  /// order in which they are sent. Throws what the share's take() throws.
  [[nodiscard]] std::unique_ptr<Rows> receive(int layer, std::size_t sequence, std::size_t tokens);
  /// To the process that runs `layer`.
  void send(int layer, std::size_t sequence, const Rows& hidden);
  /// Once this process is done with all of its layers: waits until its neighbour is too, whom a link that ends would
  /// cut off.
  void finish();

 private:
  void open_links();
  void require_same_type() const;

  ModelShare share_;
  Decoder& decoder_;
  std::future<std::unique_ptr<HiddenLink>> opening_from_, opening_to_;
  std::unique_ptr<HiddenLink> from_previous_, to_next_;  // null: through the host
};

}  // namespace oscar
