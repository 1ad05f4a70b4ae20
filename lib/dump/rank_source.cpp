// SPDX-License-Identifier: MIT
#include "dump/rank_source.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/errors.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

using Views = std::vector<HeadsView>;

[[noreturn]] void fail(const std::string& what, const std::string& where) {
  throw DataError(what, where, "dump this layer again, with all ranks of the same server");
}

bool same_bytes(const HeadsView& a, const HeadsView& b) {
  return std::memcmp(a.data, b.data, static_cast<std::size_t>(a.num_tokens * a.bytes_per_token())) == 0;
}

/// Energy of the difference over that of a.
double relative_difference(const HeadsView& a, const HeadsView& b) {
  const auto size = static_cast<std::size_t>(a.num_heads) * static_cast<std::size_t>(a.head_dim);
  std::vector<float> x(size), y(size);
  double difference = 0, energy = 0;
  for (std::int64_t t = 0; t < a.num_tokens; ++t) {
    a.token_rows(t, 1, x.data());
    b.token_rows(t, 1, y.data());
    for (std::size_t i = 0; i < size; ++i) {
      difference += std::pow(static_cast<double>(x[i]) - y[i], 2);
      energy += std::pow(static_cast<double>(x[i]), 2);
    }
  }
  return difference / std::max(energy, 1e-300);
}

/// How many neighbouring ranks hold the same heads. Copies that were computed apart and rounded otherwise would count
/// as heads of their own, so that almost the same is an error.
std::size_t copies_of(const Views& keys, const std::string& where) {
  std::size_t copies = 1;
  while (copies < keys.size() && same_bytes(keys.front(), keys[copies])) ++copies;
  if (copies < keys.size() && relative_difference(keys.front(), keys[copies]) < 1e-2) {
    fail("ranks 0 and " + std::to_string(copies) + " hold almost the same keys", where);
  }
  if (keys.size() % copies != 0) {
    fail(plural(static_cast<std::int64_t>(keys.size()), "rank") + (keys.size() == 1 ? " holds" : " hold") +
             " copies of " + std::to_string(copies) + " each",
         where);
  }
  return copies;
}

/// The first rank of each `copies`; the others must hold the same.
Views without_copies(const Views& all, std::size_t copies, const std::string& where) {
  Views kept;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (rank % copies == 0) {
      kept.push_back(all[rank]);
    } else if (!same_bytes(all[rank], kept.back())) {
      fail("rank " + std::to_string(rank) + " should hold a copy of what rank " + std::to_string(rank - rank % copies) +
               " holds, and does not",
           where);
    }
  }
  return kept;
}

/// [T, sum of heads, d]
Tensor side_by_side(const Views& parts) {
  std::int64_t heads = 0;
  for (const HeadsView& part : parts) heads += part.num_heads;
  const HeadsView& first = parts.front();
  Tensor out(first.dtype, {first.num_tokens, heads, first.head_dim});
  std::byte* to = out.data.data();
  for (std::int64_t t = 0; t < first.num_tokens; ++t) {
    for (const HeadsView& part : parts) {
      to = std::copy_n(part.data + t * part.bytes_per_token(), part.bytes_per_token(), to);
    }
  }
  return out;
}

class MergedStream : public LayerStream {
 public:
  explicit MergedStream(std::vector<std::unique_ptr<LayerStream>> ranks) : ranks_(std::move(ranks)) {}

  bool next(QkvChunk& out) override {
    std::vector<QkvChunk> chunks(ranks_.size());
    if (!advance(&LayerStream::next, chunks)) return false;
    const std::string& where = chunks.front().where;
    const Views keys = views(chunks, &QkvView::k), values = views(chunks, &QkvView::v);
    if (copies_ == 0) copies_ = copies_of(keys, where);
    const auto merged = std::make_shared<Merged>(Merged{side_by_side(views(chunks, &QkvView::q)),
                                                        side_by_side(without_copies(keys, copies_, where)),
                                                        side_by_side(without_copies(values, copies_, where))});
    out.view = {heads_view(merged->q, "q"), heads_view(merged->k, "k"), heads_view(merged->v, "v")};
    out.owner = merged;
    out.sequences = chunks.front().sequences;
    out.where = where;
    return true;
  }

  /// Only rows tell which heads are copies.
  bool skip(QkvChunk& out) override {
    if (copies_ == 0) return next(out);
    std::vector<QkvChunk> chunks(ranks_.size());
    if (!advance(&LayerStream::skip, chunks)) return false;
    out = {chunks.front().view, nullptr, chunks.front().sequences, chunks.front().where};
    const auto ranks = static_cast<int>(ranks_.size());
    out.view.q.num_heads *= ranks;
    out.view.k.num_heads *= ranks / static_cast<int>(copies_);
    out.view.v.num_heads *= ranks / static_cast<int>(copies_);
    for (HeadsView* side : {&out.view.q, &out.view.k, &out.view.v}) side->data = nullptr;
    return true;
  }

  void rewind() override {
    for (const auto& rank : ranks_) rank->rewind();
  }

 private:
  struct Merged {
    Tensor q, k, v;
  };

  bool advance(bool (LayerStream::*step)(QkvChunk&), std::vector<QkvChunk>& chunks) {
    std::size_t there = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) there += (*ranks_[rank].*step)(chunks[rank]) ? 1 : 0;
    if (there == 0) return false;
    if (there < ranks_.size()) fail("some ranks have fewer chunks than others", chunks.front().where);
    for (const QkvChunk& chunk : chunks) require_same_tokens(chunks.front(), chunk);
    return true;
  }

  static Views views(const std::vector<QkvChunk>& chunks, HeadsView QkvView::*side) {
    Views all;
    for (const QkvChunk& chunk : chunks) all.push_back(chunk.view.*side);
    return all;
  }

  static void require_same_tokens(const QkvChunk& a, const QkvChunk& b) {
    for (const auto side : {&QkvView::q, &QkvView::k, &QkvView::v}) {
      const HeadsView &x = a.view.*side, &y = b.view.*side;
      if (x.num_tokens != y.num_tokens || x.dtype != y.dtype || x.num_heads != y.num_heads ||
          x.head_dim != y.head_dim) {
        fail("ranks differ in tokens, heads or types", a.where + " and " + b.where);
      }
    }
    const auto same = [](const SequenceRange& x, const SequenceRange& y) {
      return x.begin == y.begin && x.end == y.end;
    };
    if (!std::ranges::equal(a.sequences, b.sequences, same))
      fail("ranks differ in sequences", a.where + " and " + b.where);
  }

  std::vector<std::unique_ptr<LayerStream>> ranks_;
  std::size_t copies_ = 0;  // 0: not known yet
};

class MergedSource : public QkvSource {
 public:
  explicit MergedSource(std::vector<std::unique_ptr<QkvSource>> ranks)
      : ranks_(std::move(ranks)), model_(ranks_.front()->model()), calibration_(ranks_.front()->calibration()) {
    std::string hashes;
    for (const auto& rank : ranks_) hashes += rank->calibration().data_sha256;
    calibration_.data_sha256 = sha256_hex(hashes);
    QkvChunk chunk;
    if (!open(layer_ids().front())->next(chunk)) return;
    model_.num_attention_heads = chunk.view.q.num_heads;
    model_.num_key_value_heads = chunk.view.k.num_heads;
  }

  [[nodiscard]] const ModelIdentity& model() const override { return model_; }
  [[nodiscard]] const CalibrationData& calibration() const override { return calibration_; }
  [[nodiscard]] const std::vector<int>& layer_ids() const override { return ranks_.front()->layer_ids(); }
  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    std::vector<std::unique_ptr<LayerStream>> streams;
    for (const auto& rank : ranks_) streams.push_back(rank->open(layer_id));
    return std::make_unique<MergedStream>(std::move(streams));
  }

 private:
  std::vector<std::unique_ptr<QkvSource>> ranks_;
  ModelIdentity model_;
  CalibrationData calibration_;
};

}  // namespace

std::unique_ptr<QkvSource> merge_ranks(std::vector<std::unique_ptr<QkvSource>> ranks) {
  return std::make_unique<MergedSource>(std::move(ranks));
}

}  // namespace oscar
