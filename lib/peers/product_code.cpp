// SPDX-License-Identifier: MIT
#include "peers/product_code.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/backend.hpp"

namespace oscar {
namespace {

/// rotation^-1, by which decoded rows are native again.
MatrixStack inverse_of(const Transform& transform) {
  const MatrixStack& read = transform.read();
  MatrixStack inverse(read.count, read.dim);
  const auto dim = static_cast<std::size_t>(read.dim);
  for (int m = 0; m < read.count; ++m) {
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j) inverse[m][j * dim + i] = read[m][i * dim + j];
    }
  }
  return inverse;
}

/// rows += sign * mean
void shift(std::span<float> rows, std::span<const double> mean, double sign) {
  if (mean.empty()) return;
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += static_cast<float>(sign * mean[i % mean.size()]);
}

}  // namespace

std::span<const float> ProductStage::nearest(int piece, std::span<const float> x) const {
  const auto dim = static_cast<std::size_t>(piece_dim), count = static_cast<std::size_t>(centroids);
  const auto all = std::span(values).subspan(static_cast<std::size_t>(piece) * count * dim, count * dim);
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t c = 0; c < count; ++c) {
    double distance = 0;
    for (std::size_t j = 0; j < dim; ++j) {
      const double difference = double{x[j]} - all[c * dim + j];
      distance += difference * difference;
    }
    if (distance < least) least = distance, best = c;
  }
  return all.subspan(best * dim, dim);
}

double ProductStage::bits(bool first) const {
  constexpr int kNibble = 16;
  const bool paired = !first && centroids <= kNibble && pieces % 2 == 0;
  return (paired ? 4.0 : 8.0) / piece_dim;
}

void ProductCodebook::take_nearest(std::span<float> row, Precision precision) const {
  std::vector<float> left(row.begin(), row.end());
  std::ranges::fill(row, 0.0F);
  for (const ProductStage& stage : stages) {
    for (std::size_t begin = 0; begin < row.size(); begin += static_cast<std::size_t>(stage.piece_dim)) {
      const auto piece = std::span(left).subspan(begin, static_cast<std::size_t>(stage.piece_dim));
      const auto centroid = stage.nearest(static_cast<int>(begin) / stage.piece_dim, piece);
      for (std::size_t j = 0; j < piece.size(); ++j) {
        row[begin + j] += centroid[j];
        const bool serving = precision == Precision::kServing;
        piece[j] = serving ? round_to_bf16(piece[j] - round_to_bf16(centroid[j])) : piece[j] - centroid[j];
      }
    }
  }
}

double ProductCodebook::bits() const {
  double sum = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) sum += stages[i].bits(i == 0);
  return sum;
}

SideMethod product_coded(ProductCodebook book, Transform transform) {
  const double bits = book.bits();
  const auto reconstruct = [book = std::move(book), inverse = inverse_of(transform),
                            transform = std::move(transform)](const History& history) {
    const Precision precision = history.context.precision;
    Backend& backend = *history.context.backend;
    const auto view = [&](std::span<const float> rows) {
      return heads_view(rows, history.tokens, history.heads, history.dim);
    };
    std::vector<float> stored(history.rows.size());
    shift(history.rows, transform.mean, -1);
    backend.rotate(view(history.rows), transform.rotation, precision, stored);
    const methods::Matrix rows{stored, stored.size() / static_cast<std::size_t>(history.dim),
                               static_cast<std::size_t>(history.dim)};
    methods::for_each_row(rows, [&](std::span<float> row) { book.take_nearest(row, precision); });
    backend.rotate(view(stored), inverse, Precision::kExact, history.rows);
    shift(history.rows, transform.mean, 1);
  };
  return {reconstruct, [bits](const KvShape&) { return StoredBits{bits, 0}; }};
}

}  // namespace oscar
