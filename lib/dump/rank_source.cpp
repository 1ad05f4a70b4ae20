// SPDX-License-Identifier: MIT
#include "dump/rank_source.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
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

/// Layer -> ranks, of entries layer_<id>_rank<r><suffix>.
std::map<int, std::vector<int>> ranks_beside(const fs::path& folder, const std::vector<std::string>& entries,
                                             std::string_view suffix) {
  std::map<int, std::vector<int>> found;
  for (const std::string& name : entries) {
    const std::size_t middle = name.find("_rank");
    if (!name.starts_with("layer_") || middle == std::string::npos || !name.ends_with(suffix)) continue;
    const std::string_view text = std::string_view(name).substr(0, name.size() - suffix.size());
    const auto layer = parse_entry_number(text.substr(6, middle - 6), folder / name),
               rank = parse_entry_number(text.substr(middle + 5), folder / name);
    if (layer && rank) found[*layer].push_back(*rank);
  }
  return found;
}

std::map<int, std::vector<int>> ranks_inside(const fs::path& folder) {
  std::map<int, std::vector<int>> found;
  for (const int layer : numbered_entries(folder, "layer_", "")) {
    std::vector<int> ranks = numbered_entries(folder / ("layer_" + std::to_string(layer)), "rank_", "");
    if (!ranks.empty()) found[layer] = std::move(ranks);
  }
  return found;
}

RankLayout layout_of(std::map<int, std::vector<int>> found, RankLayout layout) {
  for (auto& [layer, ranks] : found) {
    layout.layer_ids.push_back(layer);
    if (!ranks.empty()) layout.ranks = std::max(layout.ranks, *std::max_element(ranks.begin(), ranks.end()) + 1);
  }
  for (auto& [layer, ranks] : found) {
    for (int rank = 0; rank < layout.ranks; ++rank) {
      if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) continue;
      throw DataError("rank " + std::to_string(rank) + " of " + std::to_string(layout.ranks) + " is missing",
                      layout.path(layer, rank).string(), "copy the dumps of all ranks into one folder");
    }
  }
  return layout;
}

struct Rows {
  Tensor q, k, v;
  std::vector<std::int64_t> lengths;     // of sequences
  std::vector<SequenceRange> sequences;  // as far as the limits go
};

Tensor member(const PtValue& dict, const char* name, const std::string& where) {
  if (const auto* tensor = member_of<Tensor>(&dict, name)) return *tensor;
  throw DataError(std::string("there is no tensor \"") + name + "\"", where,
                  "dump queries, keys and values; latents of MLA models are another thing");
}

Rows rows_in(const fs::path& path) {
  const std::string where = path.string();
  const PtValue dict = read_pt(path);
  Rows rows{member(dict, "q", where), member(dict, "k", where), member(dict, "v", where)};
  rows.lengths = {heads_view(rows.q, where).num_tokens};
  if (dict.find("seq_lens") != nullptr) rows.lengths = member(dict, "seq_lens", where).to_int64();
  return rows;
}

/// Of a layer of a calibration. Each token gets the nearest query that was kept of its sequence, or the last one
/// before.
Rows rows_in(const ServerFile& file, int layer_id) {
  const std::int64_t tokens = file.data.tokens, stride = file.stride, heads = file.kv_heads, dim = file.model.head_dim;
  Tensor kept = file.tensor(layer_id, "q_samples", {(tokens + stride - 1) / stride, heads * file.group, dim});
  Rows rows{{},
            file.tensor(layer_id, "k", {tokens, heads, dim}),
            file.tensor(layer_id, "v", {tokens, heads, file.value_dim})};
  for (const Tensor* each : {&rows.k, &rows.v, &kept}) (void)heads_view(*each, file.path);  // of such a type
  kept = convert(kept, DType::kF32);
  const double scale = file.query_scale(layer_id);
  for (float& value : kept.values<float>()) value = static_cast<float>(value * scale);
  kept = convert(kept, rows.k.dtype);
  const std::vector<std::int64_t> positions = file.tensor(layer_id, "positions", {tokens}).to_int64();
  const auto goes_on = [&](std::size_t t) { return positions[t] > 0 && positions[t] - 1 == positions[t - 1]; };
  rows.q = Tensor(kept.dtype, {tokens, heads * file.group, dim});
  const std::size_t row = rows.q.data.size() / positions.size();
  for (std::int64_t begin = 0, end = 0; begin < tokens; begin = end) {
    do ++end;
    while (end < tokens && goes_on(static_cast<std::size_t>(end)));
    rows.lengths.push_back(end - begin);
    const std::int64_t first = (begin + stride - 1) / stride, last = (end - 1) / stride;
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t from = first <= last ? std::clamp((t + stride / 2) / stride, first, last) : t / stride;
      std::copy_n(kept.data.data() + static_cast<std::size_t>(from) * row, row,
                  rows.q.data.data() + static_cast<std::size_t>(t) * row);
    }
  }
  if (std::ssize(rows.lengths) < tokens || tokens == 1) return rows;
  throw DataError("no position follows another: the server's attention did not tell them", file.path,
                  "let a server calibrate that does");
}

std::vector<SequenceRange> sequences_of(const std::vector<std::int64_t>& lengths, std::int64_t tokens,
                                        const SourceLimits& limits, const std::string& where) {
  std::int64_t rest = tokens;  // a sum could overflow
  const bool fit = std::ranges::all_of(lengths, [&](std::int64_t n) { return n > 0 && (rest -= n) >= 0; });
  if (!fit || rest != 0) {
    throw DataError("sequence lengths are below 1 or do not add up to " + plural(tokens, "token"), where, "dump again");
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
    if (!layout_.files.empty()) file_ = layout_.files[static_cast<std::size_t>(rank_)];
    const fs::path folder = path(layout_.layer_ids.front()).parent_path();
    layer_ids_ = chosen_layers(layout_.layer_ids, limits_.layers, folder);
    const int first = layer_ids_.front();
    const Rows rows = read(first);
    model_.num_layers = layout_.layer_ids.back() + 1;
    if (std::ssize(layout_.layer_ids) < model_.num_layers) model_.cache_layers = layout_.layer_ids;
    model_.head_dim = heads_view(rows.q, "q").head_dim;
    if (const int dim = heads_view(rows.v, "v").head_dim; dim != model_.head_dim) model_.value_dim = dim;
    std::vector<std::int64_t> lengths;
    for (const SequenceRange& range : rows.sequences) lengths.push_back(range.size());
    calibration_.sequences = std::ssize(lengths);
    calibration_.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    if (file_ != nullptr) {
      model_ = file_->model;
      calibration_.blocks = blocks_within(file_->data.blocks, lengths);
      if (calibration_.tokens == file_->data.tokens) calibration_.image_tokens = file_->data.image_tokens;
    }
    const std::string whole = file_ != nullptr ? file_->data.data_sha256 + " rows" : sha256_file(path(first));
    calibration_.data_sha256 = sha256_hex(whole + " first " + std::to_string(calibration_.tokens));
  }

  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    return std::make_unique<RowsStream>(std::make_shared<Rows>(read(layer_id)), path(layer_id).string());
  }

 private:
  [[nodiscard]] fs::path path(int layer_id) const { return layout_.path(layer_id, rank_); }

  [[nodiscard]] Rows read(int layer_id) const {
    const std::string where = path(layer_id).string();
    Rows rows = file_ != nullptr ? rows_in(*file_, layer_id) : rows_in(path(layer_id));
    const HeadsView q = heads_view(rows.q, where), k = heads_view(rows.k, where), v = heads_view(rows.v, where);
    const bool fits = q.num_tokens == k.num_tokens && q.num_tokens == v.num_tokens && k.num_heads == v.num_heads &&
                      k.num_heads > 0 && q.num_heads % k.num_heads == 0 && q.head_dim == k.head_dim && q.num_tokens > 0;
    if (!fits) throw DataError("q, k and v do not fit together", where, "dump this layer again");
    rows.sequences = sequences_of(rows.lengths, q.num_tokens, limits_, where);
    return rows;
  }

  RankLayout layout_;
  int rank_;
  SourceLimits limits_;
  std::shared_ptr<const ServerFile> file_;  // null: each layer has a file
};

/// Rows that a server kept of its calibration; no ranks if it kept none.
RankLayout calibration_in(const fs::path& folder) {
  RankLayout layout{.in_files = true,
                    .path = [folder](int, int rank) { return folder / (kRowsOfRank + std::to_string(rank) + ".pt"); }};
  std::map<int, std::vector<int>> found;
  for (const int rank : numbered_entries(folder, kRowsOfRank, ".pt")) {
    const ServerFile &file = *layout.files.emplace_back(std::make_shared<ServerFile>(layout.path(0, rank))),
                     &first = *layout.files.front();
    for (const int id : file.layer_ids) found[id].push_back(rank);
    layout.ranks = first.ranks;
    layout.remark = "the server kept rows of " + plural(std::ssize(first.layer_ids), "layer") +
                    (first.stride == 1 ? ""
                                       : ", and one query in " + std::to_string(first.stride) +
                                             ", which stands for those nearest to it");
    if (file.rank == rank && file.ranks == first.ranks && file.model == first.model && file.data == first.data)
      continue;
    throw DataError(file.rank != rank ? "the file says that it is of rank " + std::to_string(file.rank)
                                      : "the file is of another calibration than that of the first rank",
                    file.path, "copy the files of all ranks of one calibration into one folder");
  }
  return layout_of(std::move(found), std::move(layout));
}

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
    fail(plural(keys.size(), "rank") + (keys.size() == 1 ? " holds" : " hold") + " copies of " +
             std::to_string(copies) + " each",
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
  explicit MergedSource(std::vector<std::unique_ptr<QkvSource>> ranks) : ranks_(std::move(ranks)) {
    const QkvSource& first = *ranks_.front();
    model_ = first.model(), calibration_ = first.calibration(), layer_ids_ = first.layer_ids();
    std::string hashes;
    for (const auto& rank : ranks_) hashes += rank->calibration().data_sha256;
    calibration_.data_sha256 = sha256_hex(hashes);
    QkvChunk chunk;
    if (!open(layer_ids_.front())->next(chunk)) return;
    model_.num_attention_heads = chunk.view.q.num_heads;
    model_.num_key_value_heads = chunk.view.k.num_heads;
  }

  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    std::vector<std::unique_ptr<LayerStream>> streams;
    for (const auto& rank : ranks_) streams.push_back(rank->open(layer_id));
    return std::make_unique<MergedStream>(std::move(streams));
  }

 private:
  std::vector<std::unique_ptr<QkvSource>> ranks_;
};

}  // namespace

RankLayout find_ranks(const fs::path& folder) {
  const std::vector<std::string> entries = names_in(folder);
  const auto beside = [folder](const std::string& suffix) {
    return [folder, suffix](int layer, int rank) {
      return folder / ("layer_" + std::to_string(layer) + "_rank" + std::to_string(rank) + suffix);
    };
  };
  const auto inside = [folder](int layer, int rank) {
    return folder / ("layer_" + std::to_string(layer)) / ("rank_" + std::to_string(rank));
  };
  const RankLayout layouts[] = {
      layout_of(ranks_beside(folder, entries, ""), {.path = beside("")}),
      layout_of(ranks_beside(folder, entries, ".pt"), {.in_files = true, .path = beside(".pt")}),
      layout_of(ranks_inside(folder), {.path = inside}), calibration_in(folder)};
  const RankLayout* only = nullptr;
  bool plain = false;
  for (const int layer : numbered_entries(folder, "layer_", "")) {
    plain = plain || fs::exists(folder / ("layer_" + std::to_string(layer)) / "q");
  }
  for (const RankLayout& layout : layouts) {
    if (layout.ranks == 0) continue;
    if (plain || only != nullptr) {
      throw DataError("there is more than one dump in this folder", layout.path(layout.layer_ids.front(), 0).string(),
                      "leave one of them there");
    }
    only = &layout;
  }
  return only == nullptr ? RankLayout{} : *only;
}

std::unique_ptr<QkvSource> open_rank_files(const RankLayout& layout, int rank, const SourceLimits& limits) {
  return std::make_unique<FileSource>(layout, rank, limits);
}

std::unique_ptr<QkvSource> merge_ranks(std::vector<std::unique_ptr<QkvSource>> ranks) {
  return std::make_unique<MergedSource>(std::move(ranks));
}

}  // namespace oscar
