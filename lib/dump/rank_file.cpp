// SPDX-License-Identifier: MIT
#include "dump/rank_file.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "dump/dump_index.hpp"
#include "tensor/pt.hpp"

namespace oscar {
namespace {

struct Rows {
  Tensor q, k, v;
  std::vector<SequenceRange> sequences;  // as far as the limits go
};

Tensor member(const PtValue& dict, const char* name, const std::string& where) {
  const PtValue* value = dict.find(name);
  if (value != nullptr && value->get_if<Tensor>() != nullptr) return *value->get_if<Tensor>();
  throw DataError(std::string("there is no tensor \"") + name + "\"", where,
                  "dump queries, keys and values; latents of MLA models are another thing");
}

std::vector<SequenceRange> sequences_of(const PtValue& dict, std::int64_t tokens, const SourceLimits& limits,
                                        const std::string& where) {
  std::vector<std::int64_t> lengths{tokens};
  if (dict.find("seq_lens") != nullptr) lengths = member(dict, "seq_lens", where).to_int64();
  const bool positive = std::ranges::all_of(lengths, [](std::int64_t n) { return n > 0; });
  if (!positive || std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}) != tokens) {
    throw DataError("the sequence lengths do not add up to " + plural(tokens, "token"), where, "dump again");
  }
  std::vector<SequenceRange> ranges;
  std::int64_t left = limits.max_tokens > 0 ? limits.max_tokens : tokens, begin = 0;
  const std::size_t most = limits.max_sequences > 0 ? static_cast<std::size_t>(limits.max_sequences) : lengths.size();
  for (std::size_t i = 0; i < lengths.size() && i < most && left > 0; ++i) {
    ranges.push_back({begin, begin + std::min(lengths[i], left)});
    left -= ranges.back().size(), begin += lengths[i];
  }
  return ranges;
}

class RowsStream : public LayerStream {
 public:
  RowsStream(std::shared_ptr<const Rows> rows, std::string where) : rows_(std::move(rows)), where_(std::move(where)) {}

  bool next(QkvChunk& out) override {
    if (std::exchange(done_, true)) return false;
    const QkvView all{heads_view(rows_->q, where_), heads_view(rows_->k, where_), heads_view(rows_->v, where_)};
    out.view = all.tokens({0, rows_->sequences.back().end});
    out.owner = rows_;
    out.sequences = rows_->sequences;
    out.where = where_;
    return true;
  }
  void rewind() override { done_ = false; }

 private:
  std::shared_ptr<const Rows> rows_;
  std::string where_;
  bool done_ = false;
};

class FileSource : public QkvSource {
 public:
  FileSource(RankLayout layout, int rank, SourceLimits limits)
      : layout_(std::move(layout)), rank_(rank), limits_(std::move(limits)) {
    const fs::path folder = path(layout_.layer_ids.front()).parent_path();
    layout_.layer_ids = chosen_layers(layout_.layer_ids, limits_.layers, folder);
    const int first = layout_.layer_ids.front();
    const Rows rows = read(first);
    model_.num_layers = layout_.layer_ids.back() + 1;
    model_.head_dim = heads_view(rows.q, "q").head_dim;
    calibration_.sequences = static_cast<std::int64_t>(rows.sequences.size());
    for (const SequenceRange& range : rows.sequences) calibration_.tokens += range.size();
    calibration_.data_sha256 = sha256_hex(sha256_file(path(first)) + " first " + std::to_string(calibration_.tokens));
  }

  [[nodiscard]] const ModelIdentity& model() const override { return model_; }
  [[nodiscard]] const CalibrationData& calibration() const override { return calibration_; }
  [[nodiscard]] const std::vector<int>& layer_ids() const override { return layout_.layer_ids; }
  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    return std::make_unique<RowsStream>(std::make_shared<Rows>(read(layer_id)), path(layer_id).string());
  }

 private:
  [[nodiscard]] fs::path path(int layer_id) const { return layout_.path(layer_id, rank_); }

  [[nodiscard]] Rows read(int layer_id) const {
    const std::string where = path(layer_id).string();
    const PtValue dict = read_pt(path(layer_id));
    Rows rows{member(dict, "q", where), member(dict, "k", where), member(dict, "v", where), {}};
    const HeadsView q = heads_view(rows.q, where), k = heads_view(rows.k, where), v = heads_view(rows.v, where);
    const bool fits = q.num_tokens == k.num_tokens && q.num_tokens == v.num_tokens && k.num_heads == v.num_heads &&
                      k.num_heads > 0 && q.num_heads % k.num_heads == 0 && q.head_dim == k.head_dim && q.num_tokens > 0;
    if (!fits) throw DataError("q, k and v do not fit together", where, "dump this layer again");
    rows.sequences = sequences_of(dict, q.num_tokens, limits_, where);
    return rows;
  }

  RankLayout layout_;
  int rank_;
  SourceLimits limits_;
  ModelIdentity model_;
  CalibrationData calibration_;
};

}  // namespace

std::unique_ptr<QkvSource> open_rank_files(const RankLayout& layout, int rank, const SourceLimits& limits) {
  return std::make_unique<FileSource>(layout, rank, limits);
}

}  // namespace oscar
