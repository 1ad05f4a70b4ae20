// SPDX-License-Identifier: MIT
#include "kernels/reference/coded_attention.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace oscar::reference {
namespace {

/// All rows of a side, (tokens, d), packed ones decoded.
std::vector<float> decoded_rows(const CodedSide& side) {
  const std::size_t dim = side.packed.format->levels.size(), row_bytes = coded_row_bytes(*side.packed.format);
  OSCAR_CHECK(side.sink.size() % dim == 0 && side.recent.size() % dim == 0 &&
              side.packed.bytes.size() % row_bytes == 0);
  std::vector<float> rows(side.sink.begin(), side.sink.end());
  std::vector<float> row(dim);
  for (std::size_t t = 0; t < side.packed.tokens(); ++t) {
    decode_coded_row(*side.packed.format, side.packed.bytes.subspan(t * row_bytes, row_bytes), row);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  rows.insert(rows.end(), side.recent.begin(), side.recent.end());
  return rows;
}

}  // namespace

std::vector<double> coded_attention(std::span<const double> query, double scale, const CodedSide& keys,
                                    const CodedSide& values) {
  const std::size_t dim = keys.packed.format->levels.size(), value_dim = values.packed.format->levels.size();
  OSCAR_CHECK(query.size() == dim && keys.packed.tokens() == values.packed.tokens());
  OSCAR_CHECK(keys.sink.size() / dim == values.sink.size() / value_dim);
  const std::vector<float> k = decoded_rows(keys), v = decoded_rows(values);
  const std::size_t tokens = k.size() / dim;
  OSCAR_CHECK(tokens > 0 && v.size() == tokens * value_dim);
  std::vector<double> scores(tokens);
  for (std::size_t j = 0; j < tokens; ++j) {
    for (std::size_t c = 0; c < dim; ++c) scores[j] += scale * query[c] * static_cast<double>(k[j * dim + c]);
  }
  const double highest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - highest);
  std::vector<double> out(value_dim);
  for (std::size_t j = 0; j < tokens; ++j) {
    for (std::size_t c = 0; c < value_dim; ++c) {
      out[c] += scores[j] / sum * static_cast<double>(v[j * value_dim + c]);
    }
  }
  return out;
}

}  // namespace oscar::reference
