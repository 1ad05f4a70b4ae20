// SPDX-License-Identifier: MIT
// A backend that wants several layers at a time, as GPUs do, and computes with another.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/backend.hpp"

namespace oscar::test {

class SideBySide : public Backend {
 public:
  SideBySide(std::unique_ptr<Backend> backend, WorkShape shape) : backend_(std::move(backend)), shape_(shape) {}

  [[nodiscard]] std::string description() const override { return backend_->description(); }
  [[nodiscard]] WorkShape work_shape() const override { return shape_; }
  void accumulate_grams(std::span<const HeadsView> parts, MatrixStack& grams) override {
    backend_->accumulate_grams(parts, grams);
  }
  void accumulate_weighted_grams(std::span<const HeadsView> keys, const MatrixStack& forms,
                                 std::span<const HeadsView> values, MatrixStack& grams,
                                 std::span<double> weights) override {
    backend_->accumulate_weighted_grams(keys, forms, values, grams, weights);
  }
  void accumulate_fisher_sums(const QkvView& qkv, std::span<const SequenceRange> sequences, Windows windows,
                              FisherSums& sums) override {
    backend_->accumulate_fisher_sums(qkv, sequences, windows, sums);
  }
  [[nodiscard]] std::vector<Eigenpairs> eigh(const MatrixStack& symmetric) override {
    return backend_->eigh(symmetric);
  }
  void quantize(std::span<const float> rows, int head_dim, const HistoryCodec& codec, Precision precision,
                std::span<float> decoded) override {
    backend_->quantize(rows, head_dim, codec, precision, decoded);
  }
  [[nodiscard]] std::unique_ptr<MixedSequence> hold(const SequenceInput& input) override {
    return backend_->hold(input);
  }

 private:
  std::unique_ptr<Backend> backend_;
  WorkShape shape_;
};

}  // namespace oscar::test
