// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/exp.hpp"
#include "moments/statistics_file.hpp"

namespace oscar {
namespace {

constexpr double kRounding = 1e-5;  // of sums by fp32 products, with room
constexpr char kAgain[] = "take the statistics again";

/// One layer's name for errors.
struct Place {
  std::string where, prefix;

  void require(bool holds, const std::string& name, const std::string& what) const {
    if (!holds) throw DataError("\"" + prefix + name + "\" " + what, where, kAgain);
  }
};

Place place_of(const LayerStatistics& layer, const std::string& where) {
  return {where, "layer_" + std::to_string(layer.layer_id) + "."};
}

OSCAR_VECTOR_CLONES std::size_t count_infinite(const double* values, std::size_t count) {
  std::size_t infinite = 0;
  for (std::size_t i = 0; i < count; ++i) infinite += values[i] - values[i] == 0.0 ? 0U : 1U;
  return infinite;
}

bool are_finite(std::span<const double> values) { return count_infinite(values.data(), values.size()) == 0; }

/// |a_ij| <= sqrt(a_ii a_jj) and a_ij = a_ji, within rounding; largest: of the diagonal.
OSCAR_VECTOR_CLONES bool entries_fit(const double* a, int dim, const double* roots, double largest) {
  const double slack = kRounding * largest;
  int wrong = 0;
  for (int i = 0; i < dim; ++i) {
    const double* const row = a + static_cast<std::ptrdiff_t>(i) * dim;
    for (int j = 0; j < dim; ++j) wrong += std::abs(row[j]) > roots[i] * roots[j] + slack ? 1 : 0;
    for (int j = 0; j < i; ++j) {
      wrong += std::abs(row[j] - a[static_cast<std::ptrdiff_t>(j) * dim + i]) > slack ? 1 : 0;
    }
  }
  return wrong == 0;
}

void check_stack(const MatrixStack& stack, const std::string& name, const Place& place) {
  place.require(are_finite(stack.data), name, "has values that are not finite");
  std::vector<double> roots(static_cast<std::size_t>(stack.dim));
  for (int h = 0; h < stack.count; ++h) {
    const std::string head = "of head " + std::to_string(h) + " ";
    const double* const a = stack[h].data();
    double largest = 0, smallest = 0;
    for (std::size_t i = 0; i < roots.size(); ++i) {
      const double square = a[i * (roots.size() + 1)];
      largest = std::max(largest, square), smallest = std::min(smallest, square);
      roots[i] = std::sqrt(std::max(square, 0.0));
    }
    place.require(smallest >= -kRounding * largest, name, head + "has negative sums of squares");
    place.require(
        entries_fit(a, stack.dim, roots.data(), largest), name,
        head + "is not a sum of products of rows: it is not symmetric, or larger beside its diagonal than on it");
  }
}

void check_totals(std::span<const double> totals, double most, const std::string& name, const Place& place) {
  for (const double total : totals) {
    place.require(std::isfinite(total) && total >= 0, name, "is " + std::to_string(total));
    place.require(
        total <= most * (1 + 1e-9), name,
        "is " + std::to_string(total) + ", but the data that the manifest lists give at most " + std::to_string(most));
  }
}

/// (sum of x)^2 <= n * sum of x^2, channel by channel.
void check_mean(std::span<const double> sums, std::span<const double> totals, const MatrixStack& squares,
                const std::string& name, const Place& place) {
  const auto dim = static_cast<std::size_t>(squares.dim);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t h = i / dim, c = i % dim;
    const double square = squares.data[(h * dim + c) * dim + c], total = totals[totals.size() == 1 ? 0 : h];
    place.require(sums[i] * sums[i] <= (1 + kRounding) * total * square + 1e-300, name,
                  "is larger than the second moments allow");
  }
}

double tokens_of(const Statistics& manifest, const std::vector<std::size_t>& data) {
  double tokens = 0;
  for (const std::size_t each : data) tokens += static_cast<double>(manifest.data[each].tokens);
  return tokens > 0 ? tokens : HUGE_VAL;  // not known
}

/// Layers of one model may differ where its identity says so: it lists layers with a cache that grows, or values of
/// another size.
void check_shape(const LayerStatistics& layer, int heads, const Statistics& manifest, const Place& place) {
  const ModelIdentity& model = manifest.model;
  const int all = manifest.heads.whole() ? model.num_key_value_heads : manifest.heads.count;
  if (model.value_dim != 0 || !model.cache_layers.empty()) return;
  const auto text = [](int value) { return std::to_string(value); };
  place.require(all == 0 || heads == all, "sums", "are of " + text(heads) + " heads, the model has " + text(all));
  if (model.head_dim == 0) return;
  const std::string dim = text(model.head_dim);
  place.require(layer.key_dim == model.head_dim, "key_dim", "is " + text(layer.key_dim) + ", the model's is " + dim);
  place.require(layer.value_dim == model.head_dim, "value_dim",
                "is " + text(layer.value_dim) + ", the model's is " + dim);
}

/// Whether a + shift has a Cholesky factor. a: (dim, dim), the upper triangle is used, and overwritten.
OSCAR_VECTOR_CLONES bool is_positive(double* a, int dim, double shift) {
  for (int k = 0; k < dim; ++k) {
    double* const row = a + static_cast<std::ptrdiff_t>(k) * dim;
    const double pivot = row[k] + shift;
    if (!(pivot > 0)) return false;
    for (int i = k + 1; i < dim; ++i) {
      double* const other = a + static_cast<std::ptrdiff_t>(i) * dim;
      const double factor = row[i] / pivot;
      for (int j = i; j < dim; ++j) other[j] -= factor * row[j];
    }
  }
  return true;
}

void require_nonzero(const MatrixStack& stack, const std::string& name, const Place& place) {
  for (int h = 0; h < stack.count; ++h) {
    place.require(stack.trace(h) > 0, name, "of head " + std::to_string(h) + " is zero: no model computes such rows");
  }
}

void check_eigenvalues(const MatrixStack& stack, const std::string& name, const Place& place) {
  for (int h = 0; h < stack.count; ++h) {
    const double trace = stack.trace(h);
    if (trace == 0) continue;  // of rows of zeros
    std::vector<double> copy(stack[h].begin(), stack[h].end());
    place.require(is_positive(copy.data(), stack.dim, kRounding * trace), name,
                  "of head " + std::to_string(h) + " has a negative eigenvalue, which a sum over rows has not");
  }
}

}  // namespace

void require_sums_of_rows(const LayerStatistics& layer, const Statistics& manifest, const std::string& where) {
  const Place place = place_of(layer, where);
  const ModelIdentity& model = manifest.model;
  // Query heads of a KV head, each of which counts its rows; a server may not tell, and a rank has some of them.
  const int query_heads = model.num_attention_heads, kv_heads = model.num_key_value_heads;
  const bool known = query_heads > 0 && kv_heads > 0 && manifest.heads.whole();
  const double group = known ? static_cast<double>(query_heads) / kv_heads : HUGE_VAL;
  const double tokens = tokens_of(manifest, layer.first_data);
  int heads = 0;
  for (const auto& [moment, moments] : layer.first.sums) {
    const std::string name(name_of(moment));
    heads = moments.sums.count;
    check_stack(moments.sums, name + ".sums", place);
    check_totals(moments.total, name[0] == 'q' ? tokens * std::max(group, 1.0) : tokens, name + ".total", place);
    for (const double total : moments.total) place.require(total > 0, name + ".total", "is 0: no tokens");
  }
  if (layer.sst) {
    heads = layer.sst->sums.count;
    check_stack(layer.sst->sums, "sst.sums", place);
    check_totals(layer.sst->total, HUGE_VAL, "sst.total", place);
  }
  if (layer.first.keys) {
    const KeySums& keys = *layer.first.keys;
    place.require(are_finite(keys.sums), "keys.sums", "has values that are not finite");
    check_totals(std::span(&keys.tokens, 1), tokens, "keys.total", place);
    place.require(keys.tokens > 0, "keys.total", "is 0: no tokens");
    const auto squares = layer.first.sums.find(Moment::kKtk);
    if (squares != layer.first.sums.end()) {
      check_mean(keys.sums, std::span(&keys.tokens, 1), squares->second.sums, "keys.sums", place);
    }
  }
  if (layer.first.fisher) {
    const FisherSums& fisher = *layer.first.fisher;
    heads = fisher.key.count;
    check_stack(fisher.query, "fisher.query", place), check_stack(fisher.key, "fisher.key", place);
    place.require(are_finite(fisher.key_sum), "fisher.key_sum", "has values that are not finite");
    check_totals(fisher.weight, HUGE_VAL, "fisher.weight", place);
    check_mean(fisher.key_sum, fisher.weight, fisher.key, "fisher.key_sum", place);
    if (fisher.value.count > 0) check_stack(fisher.value, "fisher.value", place);
    if (fisher.base_key.count > 0) {
      check_stack(fisher.base_key, "fisher.base_key", place);
      if (fisher.base_query.count > 0) check_stack(fisher.base_query, "fisher.base_query", place);
      place.require(are_finite(fisher.base_key_sum), "fisher.base_key_sum", "has values that are not finite");
      check_mean(fisher.base_key_sum, fisher.weight, fisher.base_key, "fisher.base_key_sum", place);
    }
  }
  if (layer.cost) {
    check_stack(layer.cost->key, "cost.key", place), check_stack(layer.cost->value, "cost.value", place);
  }
  const auto rows = layer.key_rows.empty() ? 0 : std::ssize(layer.key_rows.front()) / layer.key_dim;
  place.require(static_cast<double>(rows) <= tokens, "key.rows", "are more than the tokens of the data");
  check_shape(layer, heads, manifest, place);
}

void require_semidefinite(const LayerStatistics& layer, const std::string& where) {
  const Place place = place_of(layer, where);
  for (const auto& [moment, moments] : layer.first.sums) {
    const std::string name(name_of(moment));
    require_nonzero(moments.sums, name + ".sums", place);
    check_eigenvalues(moments.sums, name + ".sums", place);
  }
  if (layer.first.fisher) {
    check_eigenvalues(layer.first.fisher->query, "fisher.query", place);
    check_eigenvalues(layer.first.fisher->key, "fisher.key", place);
    check_eigenvalues(layer.first.fisher->value, "fisher.value", place);
    check_eigenvalues(layer.first.fisher->base_query, "fisher.base_query", place);
    check_eigenvalues(layer.first.fisher->base_key, "fisher.base_key", place);
  }
  if (!layer.sst) return;
  require_nonzero(layer.sst->sums, "sst.sums", place);
  check_eigenvalues(layer.sst->sums, "sst.sums", place);
}

}  // namespace oscar
