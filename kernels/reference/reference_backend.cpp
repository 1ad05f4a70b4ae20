// SPDX-License-Identifier: MIT
#include "kernels/reference/reference_backend.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "kernels/arguments.hpp"
#include "kernels/reference/eigh.hpp"
#include "kernels/reference/mixed_sequence.hpp"
#include "kernels/reference/moments.hpp"
#include "kernels/reference/packed_row.hpp"
#include "kernels/reference/row_codec.hpp"
#include "kernels/reference/stored_rows.hpp"

namespace oscar::reference {
namespace {

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
  void rotate(HeadsView x, const MatrixStack& rotated_from_native, Precision precision,
              std::span<float> rows) override {
    reference::rotate(x, rotated_from_native, precision, rows);
  }

  void quantize(std::span<const float> rows, int head_dim, const HistoryCodec& codec, Precision precision,
                std::span<float> decoded, QuantizedRows* codes) override {
    const auto dim = static_cast<std::size_t>(head_dim);
    OSCAR_CHECK(rows.size() % dim == 0 && decoded.size() == rows.size());
    if (codes != nullptr) *codes = {};
    const std::size_t heads =
        std::max({codec.head_clip_ratios.size(), codec.coded ? codec.coded->size() : 0, std::size_t{1}});
    for (std::size_t at = 0; at < rows.size(); at += dim) {
      const int head = static_cast<int>(at / dim % heads);
      const std::span<const float> row = rows.subspan(at, dim);
      std::vector<std::uint8_t> bytes(packed_row_bytes(codec, head, dim));
      encode_packed_row(codec, head, row, bytes);
      if (codes != nullptr && codec.coded != nullptr) {
        codes->codes.insert(codes->codes.end(), bytes.begin(), bytes.end());
      } else if (codes != nullptr) {
        const QuantizedRows encoded = encode_row(codec.of_head(head), row);
        codes->codes.insert(codes->codes.end(), encoded.codes.begin(), encoded.codes.end());
        codes->scale.insert(codes->scale.end(), encoded.scale.begin(), encoded.scale.end());
        codes->zero.insert(codes->zero.end(), encoded.zero.begin(), encoded.zero.end());
      }
      const std::span<float> out = decoded.subspan(at, dim);
      decode_packed_row(codec, head, bytes, out);
      for (float& value : out) value = static_cast<float>(rounded(double{value}, precision));
    }
  }

  [[nodiscard]] std::unique_ptr<MixedSequence> hold(const SequenceInput& input) override {
    return reference::hold(input);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace oscar::reference
