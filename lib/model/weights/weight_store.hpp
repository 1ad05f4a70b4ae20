// SPDX-License-Identifier: MIT
// What a decoder reads weights from; checkpoint.hpp implements it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tensor/safetensors.hpp"

namespace oscar {

/// Where a decoder finds its weights by their checkpoint names, for example "model.layers.0.self_attn.q_proj.weight".
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  /// Finds a weight. The result is valid as long as the store. Throws DataError if the checkpoint has no such tensor.
  [[nodiscard]] virtual const TensorRef& at(const std::string& name) const = 0;
  [[nodiscard]] virtual bool contains(const std::string& name) const = 0;
  /// Copies bytes that at() showed by reading their file: no page faults, and nothing stays in this process's memory.
  /// The bytes may be at a server (safetensors.hpp): nothing else may touch them.
  virtual void read(std::span<const std::byte> bytes, std::byte* to) const = 0;
  /// Copies bytes [begin, begin + count) of the named rows of a matrix, one row after the other, as read() does.
  virtual void read_rows(const TensorRef& matrix, std::span<const std::int32_t> rows, std::size_t begin,
                         std::size_t count, std::byte* to) const = 0;
  /// Returns how many read() calls at the same time are worth while; 0: as many as there are processors for.
  [[nodiscard]] virtual int readers() const = 0;
};

}  // namespace oscar
