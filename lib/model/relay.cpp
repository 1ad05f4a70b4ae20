// SPDX-License-Identifier: MIT
#include "model/relay.hpp"

#include <cstring>
#include <vector>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/status.hpp"
#include "base/wait.hpp"

namespace oscar {
namespace {

std::string link_key(const char* what, int from, int to) {
  return std::string(what) + "/" + std::to_string(from) + "/" + std::to_string(to);
}

std::string hidden_key(const char* what, int layer, std::size_t sequence) {
  return std::string(what) + "/" + std::to_string(layer) + "/" + std::to_string(sequence);
}

}  // namespace

Relay::Relay(ModelShare share, Decoder& decoder) : share_(std::move(share)), decoder_(decoder) { open_links(); }

/// A link needs two different GPUs. Its sender names it.
void Relay::open_links() {
  const int own = share_.rank, next = share_.next(), previous = share_.previous();
  const std::string place = decoder_.link_place();
  share_.put(link_key("place_of_sender", own, next), place);
  share_.put(link_key("place_of_receiver", previous, own), place);
  require_same_type();
  const auto linked = [&](const std::string& other) { return !place.empty() && !other.empty() && place != other; };
  if (linked(share_.take(link_key("place_of_receiver", own, next)))) {
    const std::string name = decoder_.new_link_name();
    share_.put(link_key("link", own, next), name);
    open(to_next_, name, true, next);
  }
  if (linked(share_.take(link_key("place_of_sender", previous, own)))) {
    open(from_previous_, share_.take(link_key("link", previous, own)), false, previous);
  }
}

void Relay::open(std::optional<LinkEnd>& end, const std::string& name, bool sends, int peer) {
  end.emplace(decoder_.open_link(name, sends),
              LinkOptions{.peer = share_.name(peer), .open_seconds = share_.open_seconds, .lost = interrupt});
}

Relay::~Relay() {
  for (auto* end : {&from_previous_, &to_next_}) {
    if (*end) (*end)->cut();
  }
}

void Relay::wait_until_open() {
  if (from_previous_) from_previous_->wait_until_open();
  if (to_next_) to_next_->wait_until_open();
  if (!greeted_) greet();
}

/// Something on its way shows that data come through, and what opens for the first is open for the others.
void Relay::greet() {
  greeted_ = true;
  const std::vector<std::int32_t> one{0};
  const Tensor word = decoder_.new_hidden_copy(one.size());
  const auto layer_of_link = [](int sender) { return -1 - sender; };  // in place of a layer's number
  if (to_next_) {
    send(layer_of_link(share_.rank), 0, decoder_.hidden_from({word.dtype, word.shape, word.data}, one));
  }
  if (from_previous_) (void)receive(layer_of_link(share_.previous()), 0, one);
  sending_.finish();
}

void Relay::require_same_type() const {
  const int own = share_.rank;
  const std::string type(name_of(decoder_.new_hidden_copy(1).dtype));
  share_.put(link_key("type", own, share_.next()), type);
  if (share_.take(link_key("type", share_.previous(), own)) == type) return;
  throw DataError("the rank before this one computes in another type", decoder_.description(),
                  "start all ranks with the same --device and --model-dtype");
}

// A transfer keeps both GPUs from loading kernels, and a process that waits for that may keep another transfer from
// beginning. So both ends begin at the same time, when there is something to send, and rank 0 takes part in one at a
// time: transfers that wait for each other all around the ring cannot be.
std::unique_ptr<Rows> Relay::receive(int layer, std::size_t sequence, std::span<const std::int32_t> tokens) {
  if (!from_previous_) {
    Tensor copy = decoder_.new_hidden_copy(tokens.size());
    const std::string value = share_.take(hidden_key("hidden", layer, sequence));
    OSCAR_CHECK(value.size() == copy.data.size());
    std::memcpy(copy.data.data(), value.data(), value.size());
    return decoder_.hidden_from({copy.dtype, copy.shape, copy.data}, tokens);
  }
  (void)share_.take(hidden_key("computed", layer, sequence));
  std::unique_lock lock(one_transfer_, std::defer_lock);
  if (share_.rank == 0) lock.lock();
  share_.put(hidden_key("ready", layer, sequence), "");
  if (share_.previous() == 0) (void)share_.take(hidden_key("begun", layer, sequence));
  return from_previous_->receive(tokens.size());
}

void Relay::send(int layer, std::size_t sequence, std::unique_ptr<Rows> hidden) {
  if (!to_next_) {
    const Tensor copy = decoder_.copy_hidden(*hidden);
    share_.put(hidden_key("hidden", layer, sequence),
               {reinterpret_cast<const char*>(copy.data.data()), copy.data.size()});
    return;
  }
  sending_.add([=, this, rows = std::shared_ptr<Rows>(std::move(hidden)), computed = to_next_->computed()] {
    try {
      wait_until(computed);
      pass_on(layer, sequence, *rows);
    } catch (const RankFailed&) {
      throw;
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception& error) {  // of which nobody may ask before what is missing is waited for
      interrupt(RankFailed(error.what(), share_.name(share_.rank), ""));
      throw;
    }
  });
}

void Relay::pass_on(int layer, std::size_t sequence, const Rows& hidden) {
  share_.put(hidden_key("computed", layer, sequence), "");
  (void)share_.take(hidden_key("ready", layer, sequence));
  std::unique_lock lock(one_transfer_, std::defer_lock);
  if (share_.rank == 0) {
    lock.lock();
    share_.put(hidden_key("begun", layer, sequence), "");
  }
  to_next_->send(hidden);
}

void Relay::require_whole() const {
  if (from_previous_) from_previous_->require_whole();
}

void Relay::finish() {
  sending_.finish();
  const int own = share_.rank, next = share_.next(), previous = share_.previous();
  for (auto* end : {&from_previous_, &to_next_}) {
    if (*end) (*end)->finish();
  }
  share_.put(link_key("received_all", previous, own), "");
  share_.put(link_key("sent_all", own, next), "");
  (void)share_.take(link_key("received_all", own, next));
  (void)share_.take(link_key("sent_all", previous, own));
}

}  // namespace oscar
