// SPDX-License-Identifier: MIT
#include "model/weights/kept_bytes.hpp"

#include <algorithm>

namespace oscar {

void KeptBytes::allow(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  allowed_ = bytes;
}

bool KeptBytes::copy(std::span<const std::byte> name, std::byte* to) const {
  std::unique_lock lock(mutex_);
  const auto found = kept_.find({name.data(), name.size()});
  if (found == kept_.end() || found->second == nullptr) return false;
  const auto own = found->second;
  lock.unlock();  // several readers copy at the same time
  std::copy(own->begin(), own->end(), to);
  return true;
}

void KeptBytes::add(std::span<const std::byte> name, const std::byte* bytes) {
  const Key key{name.data(), name.size()};
  {
    const std::lock_guard lock(mutex_);
    if (held_ + name.size() > allowed_ || !kept_.try_emplace(key).second) return;
    held_ += name.size();
  }
  auto own = std::make_shared<const std::vector<std::byte>>(bytes, bytes + name.size());
  const std::lock_guard lock(mutex_);
  kept_[key] = std::move(own);
}

}  // namespace oscar
