// SPDX-License-Identifier: MIT
// Paged pools of an INT2 cache as a server has them, in host and device memory, for tests of oscar/int2_attention.h,
// and errors of decoded outputs.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/plugin.hpp"
#include "oscar/int2_attention.h"
#include "support/support.hpp"
#include "tensor/dtype.hpp"

namespace oscar::test {

inline void check_cuda(int status) {
  if (status != 0) throw std::runtime_error(cudaGetErrorString(static_cast<cudaError_t>(status)));
}

/// A function of the plug-in.
template <class Function>
Function* plugin_function(const char* name) {
  return reinterpret_cast<Function*>(plugin_symbol("cuda", name));
}

[[nodiscard]] inline std::vector<std::byte> bytes_of(const std::vector<int>& values) {
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  return {first, first + 4 * values.size()};
}

/// Bytes on the device between two guards of kGuard bytes.
class DeviceBytes {
 public:
  static constexpr std::size_t kGuard = 256;
  explicit DeviceBytes(std::size_t size, unsigned char fill = 0);
  explicit DeviceBytes(const std::vector<std::byte>& bytes);
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  [[nodiscard]] std::byte* get() const { return data_ + kGuard; }
  [[nodiscard]] std::size_t size() const { return size_; }
  void fill(unsigned char value) { check_cuda(cudaMemset(get(), value, size_)); }
  [[nodiscard]] std::vector<std::byte> download() const;
  template <class T>
  [[nodiscard]] std::vector<T> download_as() const {
    std::vector<T> out(size_ / sizeof(T));
    check_cuda(cudaMemcpy(out.data(), get(), out.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }
  /// True if nobody wrote outside.
  [[nodiscard]] bool intact() const;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_;
};

/// Rows (page, KV head, token in page, width) of one kind, random bytes at first on the host.
struct RowPool {
  int heads, page_size, width;  // width: bytes of a row
  std::vector<std::byte> host;

  RowPool(int pages, int heads_, int page_size_, int width_)
      : heads(heads_),
        page_size(page_size_),
        width(width_),
        host(static_cast<std::size_t>(pages) * heads_ * page_size_ * width_) {}
  [[nodiscard]] std::byte* row(int page, int head, int slot) {
    return host.data() + ((static_cast<std::size_t>(page) * heads + head) * page_size + slot) * width;
  }
  [[nodiscard]] oscar_paged_rows at(const DeviceBytes& device) const {
    return {device.get(), std::int64_t{heads} * page_size * width, width, std::int64_t{page_size} * width};
  }
};

/// Pages of each sequence, in a random order.
struct Pages {
  int page_size, per_sequence = 1, total = 1;
  std::vector<int> table, lengths;

  Pages(const std::vector<int>& lengths_, int page_size_, std::mt19937& engine);
  [[nodiscard]] int page(int sequence, int token) const {
    return table[static_cast<std::size_t>(sequence) * per_sequence + token / page_size];
  }
};

/// A float as an element of `dtype` at `to`, and back.
void store(float value, oscar_dtype dtype, std::byte* to);
[[nodiscard]] float load(oscar_dtype dtype, const std::byte* from);
[[nodiscard]] inline int bytes_of(oscar_dtype dtype) { return dtype == OSCAR_FLOAT32 ? 4 : 2; }

/// What a decode kernel was given and gave: bfloat16 queries (batch, q_heads, dim), outputs of that shape, and the log
/// of the sum of exponentials (batch, q_heads). Scores are scaled by 1 / sqrt(dim).
struct DecodeResult {
  int q_heads, kv_heads, dim;
  const std::vector<std::byte>& queries;
  std::vector<float> out, lse;
};

using DecodedRows = std::vector<std::vector<double>>;  // (tokens, dim)

/// One query head, row `row` of all; writes its output and returns the log of the sum of exponentials.
inline double attend_once(const DecodeResult& result, std::size_t row, const DecodedRows& keys,
                          const DecodedRows& values, std::vector<double>& expected) {
  std::vector<double> scores;
  double top = -INFINITY, sum = 0;
  for (const auto& key : keys) {
    double score = 0;
    for (std::size_t i = 0; i < key.size(); ++i) {
      score += key[i] * load(OSCAR_BFLOAT16, &result.queries[2 * (row * key.size() + i)]);
    }
    scores.push_back(score / std::sqrt(static_cast<double>(result.dim)));
    top = std::max(top, scores.back());
  }
  for (const double score : scores) sum += std::exp(score - top);
  for (std::size_t j = 0; j < values.size(); ++j) {
    const double weight = std::exp(scores[j] - top) / sum;
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += weight * values[j][i];
  }
  return sum > 0 ? top + std::log(sum) : -INFINITY;
}

/// |out - expected| / |expected| and |lse - expected| / max(1, |expected|), the largest of the sequences.
/// rows(keys, sequence, KV head) gives the decoded keys, or the values, of all tokens.
template <class Rows>
std::pair<double, double> decode_errors(const DecodeResult& result, int batch, const Rows& rows) {
  std::pair<double, double> worst;
  for (int b = 0; b < batch; ++b) {
    double error = 0, norm = 0;
    for (int h = 0; h < result.q_heads; ++h) {
      const int kv_head = h / (result.q_heads / result.kv_heads);
      const std::size_t row = static_cast<std::size_t>(b) * result.q_heads + h;
      std::vector<double> expected(static_cast<std::size_t>(result.dim));
      const double sum = attend_once(result, row, rows(true, b, kv_head), rows(false, b, kv_head), expected);
      const double got = result.lse[row];
      worst.second = std::max(worst.second, sum == got ? 0 : std::abs(sum - got) / std::max(1.0, std::abs(sum)));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double difference = result.out[row * expected.size() + i] - expected[i];
        error += difference * difference, norm += expected[i] * expected[i];
      }
    }
    worst.first = std::max(worst.first, error == 0 ? 0 : std::sqrt(error / norm));
  }
  return worst;
}

}  // namespace oscar::test
