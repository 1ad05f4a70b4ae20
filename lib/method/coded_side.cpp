// SPDX-License-Identifier: MIT
#include "method/coded_side.hpp"

#include <algorithm>
#include <span>

#include "base/threads.hpp"
#include "method/coded_grid.hpp"

namespace oscar {
namespace {

void round_to_float(std::vector<double>& values) {
  for (double& value : values) value = static_cast<double>(static_cast<float>(value));
}

/// y = (x - mean) W of one head, in fp64. rows: (n, d).
std::vector<float> coded_rows(const Transform& transform, int head, std::span<const float> rows) {
  const auto dim = static_cast<std::size_t>(transform.rotation.dim);
  const std::span<const double> write = transform.rotation[head];
  std::vector<float> out(rows.size());
  std::vector<double> x(dim), y(dim);
  for (std::size_t first = 0; first < rows.size(); first += dim) {
    for (std::size_t i = 0; i < dim; ++i) {
      x[i] = rows[first + i] - (transform.mean.empty() ? 0 : transform.mean[static_cast<std::size_t>(head) * dim + i]);
    }
    std::fill(y.begin(), y.end(), 0.0);
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j) y[j] += x[i] * write[i * dim + j];
    }
    for (std::size_t j = 0; j < dim; ++j) out[first + j] = static_cast<float>(y[j]);
  }
  return out;
}

}  // namespace

CodedSide coded_side(CodedBasis basis, const std::vector<std::vector<float>>& rows, const CodedLevels& levels) {
  reorder(basis, levels.order);
  mix_equal_levels(basis, levels.levels);
  for (std::vector<double>* values :
       {&basis.transform.rotation.data, &basis.transform.read_rotation.data, &basis.transform.mean, &basis.lambda}) {
    round_to_float(*values);
  }
  CodedSide side{std::move(basis.transform), {}, std::move(basis.lambda)};
  const auto dim = static_cast<std::size_t>(side.transform.rotation.dim);
  side.formats.resize(rows.size());
  parallel_for(rows.size(), [&](std::size_t head) {
    const auto own = std::span(levels.levels).subspan(head * dim, dim);
    const CodedGrid grid = fit_grid(coded_rows(side.transform, static_cast<int>(head), rows[head]), own);
    side.formats[head] = {{own.begin(), own.end()}, grid.step, grid.sigma};
  });
  return side;
}

}  // namespace oscar
