// SPDX-License-Identifier: MIT
#include "model/run/captured_rows.hpp"

#include <exception>
#include <utility>

#include "base/errors.hpp"

namespace oscar {

CapturedRows::~CapturedRows() {
  try {
    if (last_.qkv != nullptr) (void)decoder_.finish_copy(*last_.qkv);
  } catch (const std::exception&) {
    return;  // the error that came before is the one to be told
  }
}

void CapturedRows::add(Sequence sequence) {
  {
    const std::lock_guard lock(mutex_);
    std::swap(sequence, last_);
  }
  wait_for(sequence);
}

void CapturedRows::finish() { wait_for(std::exchange(last_, {})); }

void CapturedRows::wait_for(const Sequence& sequence) const {
  if (sequence.qkv == nullptr) return;
  const std::string what = decoder_.finish_copy(*sequence.qkv);
  if (what.empty()) return;
  throw DataError(what + " has values that are not finite in " + std::string(name_of(sequence.dtype)),
                  where_ + ", sequence " + std::to_string(sequence.index),
                  "check the checkpoint, or choose a wider --dtype");
}

}  // namespace oscar
