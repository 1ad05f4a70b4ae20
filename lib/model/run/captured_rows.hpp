// SPDX-License-Identifier: MIT
// q, k and v of one layer on their way to host memory. A sequence's copies are waited for once those of the next
// sequence have begun, so that a GPU computes meanwhile. Non-goal: where the copies go, which the caller says.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "model/run/decoder.hpp"

namespace oscar {

class CapturedRows {
 public:
  struct Sequence {
    std::size_t index = 0;
    DType dtype = DType::kF32;  // of the copies
    std::unique_ptr<Rows> qkv;  // whose copies have begun
  };

  /// where: names the model and the layer in errors. `decoder` must outlive this.
  CapturedRows(const Decoder& decoder, std::string where) : decoder_(decoder), where_(std::move(where)) {}
  /// Waits for copies that nobody has waited for, since an error came before.
  ~CapturedRows();
  CapturedRows(const CapturedRows&) = delete;
  CapturedRows& operator=(const CapturedRows&) = delete;

  /// Waits for the sequence that was added before. May be called concurrently. Throws DataError if that one has values
  /// which are not finite in the type of the copies.
  void add(Sequence sequence);
  /// Waits for the sequence that was added last. Throws as add() does.
  void finish();

 private:
  void wait_for(const Sequence& sequence) const;

  const Decoder& decoder_;
  std::string where_;
  std::mutex mutex_;
  Sequence last_;
};

}  // namespace oscar
