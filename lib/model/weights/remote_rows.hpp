// SPDX-License-Identifier: MIT
// Rows of a matrix that lies at a server. What one sequence of tokens needs, the next needs again for the most part:
// rows stay in memory, and rows that lie near each other come in one request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "tensor/safetensors.hpp"

namespace oscar {

class RemoteRows {
 public:
  struct Part {
    std::span<const std::byte> from;  // of the matrix
    std::span<std::byte> to;
  };
  /// Reads parts of the matrix, at the same time.
  using Read = std::function<void(std::span<const Part> parts)>;

  /// Copies bytes [begin, begin + count) of rows of `matrix`, in the order given. Always the same matrix. Throws what
  /// `read` throws.
  void read(const TensorRef& matrix, std::span<const std::int32_t> rows, std::size_t begin, std::size_t count,
            std::byte* to, const Read& read);

 private:
  void fetch(const TensorRef& matrix, std::vector<std::int32_t> rows, const Read& read);

  std::mutex mutex_;
  std::map<std::int32_t, std::vector<std::byte>> kept_;  // by row: as many as there are different tokens, at most
};

}  // namespace oscar
