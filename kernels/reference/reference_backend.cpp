// SPDX-License-Identifier: MIT
#include "kernels/reference/reference_backend.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/errors.hpp"
#include "kernels/arguments.hpp"
#include "kernels/mixed_sequence.hpp"
#include "kernels/reference/attention.hpp"
#include "kernels/reference/row_codec.hpp"

namespace oscar::reference {
namespace {

/// Returns the rows of one head, (tokens, d).
std::vector<float> head_of(const std::vector<float>& rows, int heads, int head, int dim) {
  std::vector<float> own;
  for (std::size_t row = static_cast<std::size_t>(head); row * static_cast<std::size_t>(dim) < rows.size();
       row += static_cast<std::size_t>(heads)) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(row) * dim;
    own.insert(own.end(), begin, begin + dim);
  }
  return own;
}

/// Returns the transposed matrices as Precision keeps them, or none for no transform: what maps stored rows back to
/// native ones.
MatrixStack native_from_stored(const Transform* transform, Precision precision) {
  if (transform == nullptr) return {};
  const MatrixStack& read = transform->read();
  MatrixStack result(read.count, read.dim);
  const auto dim = static_cast<std::size_t>(read.dim);
  for (int m = 0; m < read.count; ++m) {
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j) result[m][j * dim + i] = rounded(read[m][i * dim + j], precision);
    }
  }
  return result;
}

/// Returns row M, the row rounded as Precision says before; the rounded row without matrices.
std::vector<double> mapped(const std::vector<double>& row, const MatrixStack& matrices, int head, Precision precision) {
  std::vector<double> result(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double value = rounded(row[i], precision);
    if (matrices.count == 0) {
      result[i] = value;
      continue;
    }
    const std::span<const double> matrix = matrices.for_head(head);
    for (std::size_t c = 0; c < row.size(); ++c) result[c] += value * matrix[i * row.size() + c];
  }
  return result;
}

/// Returns keys, or values, as a cache stores them, (tokens, heads, d).
std::vector<float> stored(HeadsView native, const Transform* transform, Precision precision) {
  if (transform == nullptr) return stored_rows(native, nullptr, {}, precision);
  return stored_rows(native, &transform->rotation, transform->mean, precision);
}

/// Keys, or values, of a sequence.
class Side {
 public:
  Side(HeadsView native, HeadsView given, const Transform* transform, Precision precision)
      : native_(native),
        given_(given),
        transform_(transform),
        precision_(precision),
        stored_(stored(native, transform, precision)),
        unrounded_(stored(native, transform, Precision::kExact)) {}

  /// Returns what queries read of one KV head, its history packed by the codec.
  [[nodiscard]] CacheRows rows(const std::optional<HistoryCodec>& codec, int head) const {
    const int heads = native_.num_heads, dim = native_.head_dim;
    const std::vector<float> own = head_of(stored_, heads, head, dim);
    if (!codec) return {dim, own, own};
    check_heads(*codec, heads);
    if (given_.data != nullptr)
      return {dim, own, head_of(stored_rows(given_, nullptr, {}, Precision::kExact), heads, head, dim)};
    const auto size = static_cast<std::size_t>(dim);
    const std::size_t row_bytes = packed_row_bytes(*codec, head, size);
    std::vector<std::uint8_t> packed(own.size() / size * row_bytes);
    for (std::size_t t = 0; t < own.size() / size; ++t) {
      encode_packed_row(*codec, head, std::span(own).subspan(t * size, size),
                        std::span(packed).subspan(t * row_bytes, row_bytes));
    }
    return packed_cache_rows(own, dim, packed, *codec, head, precision_);
  }

  /// Returns the energies of the native rows and of what the cache adds to them, of tokens [begin, end) of one KV head.
  /// Noise is measured in stored coordinates where the rotation keeps lengths.
  [[nodiscard]] std::pair<double, double> errors(const std::optional<HistoryCodec>& codec, int head, std::int64_t begin,
                                                 std::int64_t end) const {
    const auto size = static_cast<std::size_t>(native_.head_dim);
    const bool keeps_lengths = transform_ == nullptr || transform_->read_rotation.count == 0;
    const MatrixStack back = keeps_lengths ? MatrixStack() : native_from_stored(transform_, Precision::kExact);
    const std::vector<float> exact = head_of(unrounded_, native_.num_heads, head, native_.head_dim);
    const CacheRows cache = rows(codec, head);
    double signal = 0, noise = 0;
    for (std::int64_t t = begin; t < end; ++t) {
      std::vector<double> own(size), error(size);
      native_.head_rows(t, 1, head, own.data());
      for (std::size_t c = 0; c < size; ++c) {
        const std::size_t at = static_cast<std::size_t>(t) * size + c;
        error[c] = double{exact[at]} - double{cache.history[at]};
      }
      for (const double x : own) signal += x * x;
      for (const double x : mapped(error, back, head, Precision::kExact)) noise += x * x;
    }
    return {signal, noise};
  }

 private:
  HeadsView native_, given_;
  const Transform* transform_;
  Precision precision_;
  std::vector<float> stored_, unrounded_;  // (tokens, heads, d); the second as Precision::kExact stores it
};

class ReferenceSequence : public MixedSequence {
 public:
  explicit ReferenceSequence(const SequenceInput& input)
      : input_(input),
        key_(input.qkv.k, input.decoded_k, input.key, input.precision),
        value_(input.qkv.v, input.decoded_v, input.value, input.precision),
        positions_(resolve_positions(input.query_positions, input.qkv.q.num_tokens)),
        q_(stored_rows(input.qkv.q, input.key != nullptr ? &input.key->read() : nullptr, {}, input.precision)),
        back_(native_from_stored(input.value, input.precision)) {}

  void attend(const HistoryCodecs& codecs, Windows windows, std::span<float> out) override {
    const auto value_dim = static_cast<std::size_t>(input_.qkv.v.head_dim);
    OSCAR_CHECK(out.size() == positions_.size() * static_cast<std::size_t>(heads()) * value_dim);
    for (int head = 0; head < heads(); ++head) {
      const CacheRows keys = key_.rows(codecs.key, kv_head(head)), values = value_.rows(codecs.value, kv_head(head));
      for (std::size_t i = 0; i < positions_.size(); ++i) {
        const std::vector<double> output = cached(i, head, keys, values, windows).output;
        for (std::size_t c = 0; c < value_dim; ++c) {
          const std::size_t row = i * static_cast<std::size_t>(heads()) + static_cast<std::size_t>(head);
          out[row * value_dim + c] = static_cast<float>(output[c]);
        }
      }
    }
  }

  [[nodiscard]] std::vector<std::vector<AttentionErrors>> compare(std::span<const HistoryCodecs> candidates,
                                                                  Windows windows) override {
    OSCAR_CHECK(input_.scores == nullptr);
    std::vector<std::vector<AttentionErrors>> all;
    for (const HistoryCodecs& codecs : candidates) {
      std::vector<AttentionErrors>& errors = all.emplace_back(static_cast<std::size_t>(heads()));
      for (int head = 0; head < heads(); ++head) {
        const CacheRows native_keys = native_rows(input_.qkv.k, kv_head(head)),
                        native_values = native_rows(input_.qkv.v, kv_head(head));
        const CacheRows keys = key_.rows(codecs.key, kv_head(head)), values = value_.rows(codecs.value, kv_head(head));
        for (std::size_t i = 0; i < positions_.size(); ++i) {
          Query query{std::vector<double>(static_cast<std::size_t>(input_.qkv.q.head_dim)), positions_[i], head};
          input_.qkv.q.head_rows(static_cast<std::int64_t>(i), 1, head, query.row.data());
          add_errors(attend_exactly(query, native_keys, native_values), cached(i, head, keys, values, windows), windows,
                     errors[static_cast<std::size_t>(head)]);
        }
      }
    }
    return all;
  }

  [[nodiscard]] std::vector<RowErrors> row_errors(const HistoryCodecs& codecs, Windows windows) override {
    const std::int64_t begin = windows.sink, end = input_.qkv.k.num_tokens - windows.recent;
    std::vector<RowErrors> all;
    for (int head = 0; head < input_.qkv.k.num_heads; ++head) {
      const auto [key_signal, key_noise] = key_.errors(codecs.key, head, begin, end);
      const auto [value_signal, value_noise] = value_.errors(codecs.value, head, begin, end);
      all.push_back({key_signal, key_noise, value_signal, value_noise});
    }
    return all;
  }

 private:
  [[nodiscard]] int heads() const { return input_.qkv.q.num_heads; }
  [[nodiscard]] int kv_head(int head) const { return head / (heads() / input_.qkv.k.num_heads); }

  [[nodiscard]] static CacheRows native_rows(const HeadsView& x, int head) {
    return {x.head_dim, head_of(stored_rows(x, nullptr, {}, Precision::kExact), x.num_heads, head, x.head_dim), {}};
  }

  /// Returns the attention of query i over the cache, its output in native coordinates.
  [[nodiscard]] Attention cached(std::size_t i, int head, const CacheRows& keys, const CacheRows& values,
                                 Windows windows) const {
    const auto dim = static_cast<std::size_t>(keys.dim);
    const auto row = q_.begin() + static_cast<std::ptrdiff_t>(
                                      (i * static_cast<std::size_t>(heads()) + static_cast<std::size_t>(head)) * dim);
    const Query query{{row, row + keys.dim}, positions_[i], head};
    Attention found = reference::attend(query, keys, values, windows, input_.scores);
    found.output = mapped(found.output, back_, kv_head(head), input_.precision);
    return found;
  }

  SequenceInput input_;
  Side key_, value_;
  std::vector<std::int64_t> positions_;
  std::vector<float> q_;  // (queries, Hq, d), in the coordinates of stored keys
  MatrixStack back_;      // maps outputs to native coordinates; none without a transform of values
};

class ReferenceBackend : public Backend {
 public:
  [[nodiscard]] std::string description() const override { return "reference, 1 thread"; }

  void accumulate_grams(std::span<const HeadsView> parts, MatrixStack& grams) override {
    for (const HeadsView& x : parts) reference::accumulate_grams(x, grams);
  }
  void accumulate_weighted_grams(std::span<const HeadsView> keys, const MatrixStack& forms,
                                 std::span<const HeadsView> values, MatrixStack& grams,
                                 std::span<double> weights) override {
    OSCAR_CHECK(keys.size() == values.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      reference::accumulate_weighted_grams(keys[i], forms, values[i], grams, weights);
    }
  }
  void accumulate_fisher_sums(const QkvView& qkv, std::span<const SequenceRange> sequences, Windows windows,
                              FisherSums& sums) override {
    reference::accumulate_fisher_sums(qkv, sequences, windows, sums);
  }
  [[nodiscard]] std::vector<Eigenpairs> eigh(const MatrixStack& symmetric) override {
    std::vector<Eigenpairs> pairs;
    for (int i = 0; i < symmetric.count; ++i) pairs.push_back(reference::eigh(symmetric[i], symmetric.dim));
    return pairs;
  }

  void quantize(std::span<const float> rows, int head_dim, const HistoryCodec& codec, Precision precision,
                std::span<float> decoded) override {
    const auto dim = static_cast<std::size_t>(head_dim);
    OSCAR_CHECK(rows.size() % dim == 0 && decoded.size() == rows.size());
    const std::size_t heads =
        std::max({codec.head_clip_ratios.size(), codec.coded ? codec.coded->size() : 0, std::size_t{1}});
    for (std::size_t at = 0; at < rows.size(); at += dim) {
      const int head = static_cast<int>(at / dim % heads);
      const std::span<const float> row = rows.subspan(at, dim);
      std::vector<std::uint8_t> bytes(packed_row_bytes(codec, head, dim));
      encode_packed_row(codec, head, row, bytes);
      const std::span<float> out = decoded.subspan(at, dim);
      decode_packed_row(codec, head, bytes, out);
      for (float& value : out) value = static_cast<float>(rounded(double{value}, precision));
    }
  }

  [[nodiscard]] std::unique_ptr<MixedSequence> hold(const SequenceInput& input) override {
    check_sequence(input);
    return std::make_unique<ReferenceSequence>(input);
  }
};

std::vector<double> row_of(const HeadsView& x, std::int64_t token, int head) {
  std::vector<double> row(static_cast<std::size_t>(x.head_dim));
  x.head_rows(token, 1, head, row.data());
  return row;
}

/// gram += weight x^T x
void add_outer(double weight, const std::vector<double>& x, std::span<double> gram) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) gram[i * x.size() + j] += weight * x[i] * x[j];
  }
}

/// Returns x M.
std::vector<double> product(const std::vector<double>& x, std::span<const double> matrix) {
  std::vector<double> result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t c = 0; c < x.size(); ++c) result[c] += x[i] * matrix[i * x.size() + c];
  }
  return result;
}

CacheRows sequence_rows(const HeadsView& x, SequenceRange sequence, int head) {
  CacheRows rows{x.head_dim, {}, {}};
  std::vector<float> row(static_cast<std::size_t>(x.head_dim));
  for (std::int64_t t = sequence.begin; t < sequence.end; ++t) {
    x.row(t, head, row);
    rows.stored.insert(rows.stored.end(), row.begin(), row.end());
  }
  return rows;
}

/// Calls visit(sequence, query head, KV head, query, its attention) for every query of every sequence. The query's
/// position counts from the start of its sequence.
void for_each_query(const QkvView& qkv, std::span<const SequenceRange> sequences,
                    const std::function<void(SequenceRange, int kv_head, const Query&, const Attention&)>& visit) {
  for (const SequenceRange& sequence : sequences) {
    for (int head = 0; head < qkv.q.num_heads; ++head) {
      const int kv_head = head / (qkv.q.num_heads / qkv.k.num_heads);
      const CacheRows keys = sequence_rows(qkv.k, sequence, kv_head), values = sequence_rows(qkv.v, sequence, kv_head);
      for (std::int64_t position = 0; position < sequence.size(); ++position) {
        const Query query{row_of(qkv.q, sequence.begin + position, head), position, head};
        visit(sequence, kv_head, query, attend_exactly(query, keys, values));
      }
    }
  }
}

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

void accumulate_grams(HeadsView x, MatrixStack& grams) {
  OSCAR_CHECK(x.head_dim == grams.dim && x.num_heads % grams.count == 0);
  for (std::int64_t t = 0; t < x.num_tokens; ++t) {
    for (int head = 0; head < x.num_heads; ++head) {
      add_outer(1, row_of(x, t, head), grams[head / (x.num_heads / grams.count)]);
    }
  }
}

void accumulate_weighted_grams(HeadsView k, const MatrixStack& forms, HeadsView v, MatrixStack& grams,
                               std::span<double> weights) {
  OSCAR_CHECK(k.num_heads == v.num_heads && k.num_tokens == v.num_tokens && k.num_heads == grams.count);
  for (std::int64_t t = 0; t < k.num_tokens; ++t) {
    for (int head = 0; head < k.num_heads; ++head) {
      const std::vector<double> key = row_of(k, t, head), formed = product(key, forms[head]);
      double weight = 0;
      for (std::size_t c = 0; c < key.size(); ++c) weight += formed[c] * key[c];
      weights[static_cast<std::size_t>(head)] += weight;
      add_outer(std::max(weight, 0.0), row_of(v, t, head), grams[head]);
    }
  }
}

void accumulate_fisher_sums(const QkvView& qkv, std::span<const SequenceRange> sequences, Windows windows,
                            FisherSums& sums) {
  const auto dim = static_cast<std::size_t>(qkv.k.head_dim);
  for_each_query(qkv, sequences, [&](SequenceRange sequence, int kv, const Query& query, const Attention& found) {
    double felt_by_query = 0;
    for (std::int64_t j = windows.sink; j <= query.position - windows.recent; ++j) {
      const double p = found.probabilities[static_cast<std::size_t>(j)], felt = p * (1 - p);
      felt_by_query += felt;
      const std::vector<double> key = row_of(qkv.k, sequence.begin + j, kv);
      add_outer(felt, key, sums.key[kv]);
      for (std::size_t c = 0; c < dim; ++c) sums.key_sum[static_cast<std::size_t>(kv) * dim + c] += felt * key[c];
      sums.weight[static_cast<std::size_t>(kv)] += felt;
      if (sums.base_key.count > 0) {
        const std::vector<double> base = row_of(qkv.base_k, sequence.begin + j, kv);
        add_outer(felt, base, sums.base_key[kv]);
        for (std::size_t c = 0; c < dim; ++c)
          sums.base_key_sum[static_cast<std::size_t>(kv) * dim + c] += felt * base[c];
      }
      if (sums.value.count > 0) add_outer(p * p, row_of(qkv.v, sequence.begin + j, kv), sums.value[kv]);
    }
    add_outer(felt_by_query, query.row, sums.query[kv]);
    if (sums.base_query.count == 0) return;
    add_outer(felt_by_query, row_of(qkv.base_q, sequence.begin + query.position, query.head), sums.base_query[kv]);
  });
}

namespace {

/// Turns columns p and q of m by a plane rotation: p' = c p - s q, q' = s p + c q.
void turn_columns(std::vector<double>& m, std::size_t dim, std::size_t p, std::size_t q, double c, double s) {
  for (std::size_t i = 0; i < dim; ++i) {
    const double x = m[i * dim + p], y = m[i * dim + q];
    m[i * dim + p] = c * x - s * y;
    m[i * dim + q] = s * x + c * y;
  }
}

/// Turns rows p and q of m likewise.
void turn_rows(std::vector<double>& m, std::size_t dim, std::size_t p, std::size_t q, double c, double s) {
  for (std::size_t i = 0; i < dim; ++i) {
    const double x = m[p * dim + i], y = m[q * dim + i];
    m[p * dim + i] = c * x - s * y;
    m[q * dim + i] = s * x + c * y;
  }
}

/// Zeroes every entry above the diagonal once. Returns whether there was one to be zeroed.
bool sweep(std::vector<double>& a, std::vector<double>& vectors, std::size_t dim) {
  bool turned = false;
  for (std::size_t p = 0; p < dim; ++p) {
    for (std::size_t q = p + 1; q < dim; ++q) {
      const double between = a[p * dim + q], low = a[p * dim + p], high = a[q * dim + q];
      if (std::abs(between) <= 1e-17 * (std::abs(low) + std::abs(high)) || between == 0) continue;
      const double theta = (high - low) / (2 * between);
      const double t = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::hypot(theta, 1.0));
      const double c = 1 / std::hypot(t, 1.0), s = t * c;
      turn_columns(a, dim, p, q, c, s), turn_rows(a, dim, p, q, c, s);
      turn_columns(vectors, dim, p, q, c, s);
      turned = true;
    }
  }
  return turned;
}

}  // namespace

Eigenpairs eigh(std::span<const double> symmetric, int dim) {
  check_finite(symmetric);
  const auto size = static_cast<std::size_t>(dim);
  std::vector<double> a(symmetric.begin(), symmetric.end());
  std::vector<double> vectors(size * size);
  for (std::size_t i = 0; i < size; ++i) vectors[i * size + i] = 1;
  for (int sweeps = 0; sweep(a, vectors, size); ++sweeps) {
    if (sweeps == 60) throw NumericalError("an eigenproblem does not converge", "", "check the matrix for its scale");
  }
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return a[i * size + i]; });
  Eigenpairs pairs{std::vector<double>(size), std::vector<double>(size * size)};
  for (std::size_t j = 0; j < size; ++j) {
    pairs.values[j] = a[order[j] * size + order[j]];
    for (std::size_t i = 0; i < size; ++i) pairs.vectors[i * size + j] = vectors[i * size + order[j]];
  }
  return pairs;
}

}  // namespace oscar::reference
