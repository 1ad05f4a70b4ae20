// SPDX-License-Identifier: MIT
#include "model/relay.hpp"

#include <cstring>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/status.hpp"

namespace oscar {
namespace {

std::string link_key(const char* what, int from, int to) {
  return std::string(what) + "/" + std::to_string(from) + "/" + std::to_string(to);
}

std::string hidden_key(int layer, std::size_t sequence) {
  return "hidden/" + std::to_string(layer) + "/" + std::to_string(sequence);
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
}

void Relay::require_whole() const {
  if (from_previous_) from_previous_->require_whole();
}

void Relay::require_same_type() const {
  const int own = share_.rank;
  const std::string type(name_of(decoder_.new_hidden_copy(1).dtype));
  share_.put(link_key("type", own, share_.next()), type);
  if (share_.take(link_key("type", share_.previous(), own)) == type) return;
  throw DataError("the rank before this one computes in another type", decoder_.description(),
                  "start all ranks with the same --device and --model-dtype");
}

std::unique_ptr<Rows> Relay::receive(int layer, std::size_t sequence, std::size_t tokens) {
  if (from_previous_) return from_previous_->receive(tokens);
  Tensor copy = decoder_.new_hidden_copy(tokens);
  const std::string value = share_.take(hidden_key(layer, sequence));
  OSCAR_CHECK(value.size() == copy.data.size());
  std::memcpy(copy.data.data(), value.data(), value.size());
  return decoder_.hidden_from({copy.dtype, copy.shape, copy.data}, tokens);
}

void Relay::send(int layer, std::size_t sequence, const Rows& hidden) {
  if (to_next_) return to_next_->send(hidden);
  const Tensor copy = decoder_.copy_hidden(hidden);
  share_.put(hidden_key(layer, sequence), {reinterpret_cast<const char*>(copy.data.data()), copy.data.size()});
}

void Relay::finish() {
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
