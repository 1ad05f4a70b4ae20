// SPDX-License-Identifier: MIT
// Decode attention of one query over the coded cache: packed rows between windows that keep rows as they are. Plain
// loops in fp64: what a kernel for servers is tested against.
//
// A head's basis maps native rows of dimension d to coded coordinates and back, write W and read R with W R^T = I:
//   keys     y = (k - mean) W         q k^T and (q R) y^T differ by q mean^T, which is the same for all keys
//   values   y = v W                  the output is (sum_j p_j y_j) R^T
// Packed rows hold y as coded_row.hpp says; window rows hold y as float32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/reference/coded_row.hpp"

namespace oscar::reference {

/// The history of one KV head and side between the windows, in order.
struct CodedRows {
  const CodedFormat* format = nullptr;
  std::span<const std::uint8_t> bytes;  // (tokens, coded_row_bytes(*format))

  [[nodiscard]] std::size_t tokens() const { return bytes.size() / coded_row_bytes(*format); }
};

/// Keys, or values, of one KV head in coded coordinates, oldest first: the first window, packed rows, the last window.
struct CodedSide {
  std::span<const float> sink;  // (tokens, d)
  CodedRows packed;
  std::span<const float> recent;  // (tokens, d)
};

/// Attention of one query head, in coded coordinates.
///   query      (d) q R of the keys
///   scale      multiplies scores: 1 / sqrt(d) of the native head
/// Returns sum_j p_j y_j of the values, (d_v). Throws std::logic_error unless keys and values have the same tokens in
/// each part, at least one in all.
[[nodiscard]] std::vector<double> coded_attention(std::span<const double> query, double scale, const CodedSide& keys,
                                                  const CodedSide& values);

}  // namespace oscar::reference
