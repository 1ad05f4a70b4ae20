// SPDX-License-Identifier: MIT
#include "dump/folder_source.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/places.hpp"
#include "base/sha256.hpp"
#include "dump/dump_data.hpp"
#include "dump/dump_index.hpp"
#include "dump/rank_file.hpp"
#include "dump/rank_source.hpp"
#include "dump/remote_chunks.hpp"

namespace oscar {
namespace {

/// For chunks at a server: a layer or more of most models, with the default number of tokens.
constexpr std::uint64_t kMemoryBytes = std::uint64_t{2} << 30;

/// Cuts chunks to the limits: whole sequences while they fit, the last one shortened.
std::vector<DumpChunk> limited(std::vector<DumpChunk> chunks, const SourceLimits& limits) {
  std::int64_t tokens_left = limits.max_tokens > 0 ? limits.max_tokens : INT64_MAX;
  std::int64_t sequences_left = limits.max_sequences > 0 ? limits.max_sequences : INT64_MAX;
  for (DumpChunk& chunk : chunks) {
    std::vector<std::int64_t> kept;
    for (const std::int64_t length : chunk.seq_lens) {
      if (tokens_left <= 0 || sequences_left <= 0) break;
      kept.push_back(std::min(length, tokens_left));
      tokens_left -= kept.back();
      --sequences_left;
    }
    chunk.seq_lens = std::move(kept);
  }
  std::erase_if(chunks, [](const DumpChunk& chunk) { return chunk.seq_lens.empty(); });
  return chunks;
}

std::vector<SequenceRange> ranges_of(const std::vector<std::int64_t>& lengths) {
  std::vector<SequenceRange> ranges;
  std::int64_t tokens = 0;
  for (const std::int64_t length : lengths) {
    ranges.push_back({tokens, tokens + length});
    tokens += length;
  }
  return ranges;
}

/// Chunks on disk.
class FolderStream : public LayerStream {
 public:
  explicit FolderStream(std::vector<DumpChunk> chunks) : chunks_(std::move(chunks)) {}

  bool next(QkvChunk& out) override {
    if (next_ == chunks_.size()) return false;
    const DumpChunk& chunk = chunks_[next_++];
    const auto files = std::make_shared<const Files>(
        Files{MappedFile(chunk.q.file), MappedFile(chunk.k.file), MappedFile(chunk.v.file)});
    out.sequences = ranges_of(chunk.seq_lens);
    const std::int64_t tokens = out.sequences.back().end;
    out.view = {view(files->q, chunk.q, tokens), view(files->k, chunk.k, tokens), view(files->v, chunk.v, tokens)};
    out.owner = files;
    out.where = chunk.q.file.string();
    return true;
  }

  void rewind() override { next_ = 0; }

 private:
  struct Files {
    MappedFile q, k, v;
  };

  static HeadsView view(const MappedFile& file, const ChunkTensor& tensor, std::int64_t tokens) {
    const TensorLocation& place = tensor.location;
    const HeadsView whole{file.bytes().data() + place.offset,
                          place.dtype,
                          place.shape[0],
                          static_cast<int>(place.shape[1]),
                          static_cast<int>(place.shape[2]),
                          {file.descriptor(), place.offset}};
    const auto needed = static_cast<std::uint64_t>(whole.bytes_per_token()) * static_cast<std::uint64_t>(tokens);
    if (place.offset > file.bytes().size() || needed > file.bytes().size() - place.offset) {
      throw DataError("the file became shorter while it was read", tensor.file.string(), "dump this layer again");
    }
    return whole.tokens(0, tokens);
  }

  std::vector<DumpChunk> chunks_;
  std::size_t next_ = 0;
};

/// Chunks at a server.
class RemoteStream : public LayerStream {
 public:
  RemoteStream(std::shared_ptr<RemoteChunks> memory, int layer_id)
      : memory_(std::move(memory)), layer_id_(layer_id), chunks_(memory_->chunks(layer_id)) {}
  ~RemoteStream() override {
    if (open_) {
      memory_->close(layer_id_);
    } else {
      memory_->pass_over(layer_id_);
    }
  }

  bool next(QkvChunk& out) override {
    if (!open_) memory_->open(layer_id_);  // only now: before, rows may be needed by nobody
    open_ = true;
    const std::size_t index = next_;
    out = {};  // what it held may be needed to make room
    if (!skip(out)) return false;
    const std::shared_ptr<const ChunkRows> rows = memory_->get(layer_id_, index);
    out.view = rows->view();
    out.owner = rows;
    return true;
  }

  bool skip(QkvChunk& out) override {
    if (next_ == chunks_.size()) return false;
    const DumpChunk& chunk = chunks_[next_++];
    out = {ChunkRows::shapes_of(chunk), nullptr, ranges_of(chunk.seq_lens), chunk.q.file.string()};
    return true;
  }

  void rewind() override { next_ = 0; }

 private:
  std::shared_ptr<RemoteChunks> memory_;
  int layer_id_;
  std::vector<DumpChunk> chunks_;
  std::size_t next_ = 0;
  bool open_ = false;
};

/// Keeps what there is to say until someone hears it.
struct KeptNotices : Status {
  std::vector<std::string> lines;
  void notice(const std::string& line) override { lines.push_back(line); }
};

class FolderSource : public QkvSource {
 public:
  /// memory_bytes: for chunks at a server. index: arguments of a DumpIndex.
  template <class... Index>
  FolderSource(SourceLimits limits, Status& status, std::uint64_t memory_bytes, const Index&... index)
      : index_(index...), limits_(std::move(limits)), status_(status) {
    layer_ids_ = chosen_layers(index_.layer_ids(), limits_.layers, index_.folder());
    if (is_remote(index_.folder())) {
      const auto plan = [this](int layer_id) { return chunks_at_server(layer_id); };
      memory_ = std::make_shared<RemoteChunks>(layer_ids_, plan, memory_bytes);
    }
    describe();
  }

  ~FolderSource() override {
    if (memory_ != nullptr) memory_->stop();  // streams may keep it
  }
  FolderSource(const FolderSource&) = delete;
  FolderSource& operator=(const FolderSource&) = delete;

  [[nodiscard]] const ModelIdentity& model() const override { return model_; }
  [[nodiscard]] const CalibrationData& calibration() const override { return calibration_; }
  [[nodiscard]] const std::vector<int>& layer_ids() const override { return layer_ids_; }
  void expect(std::span<const int> layer_ids) override {
    if (memory_ != nullptr) memory_->expect({layer_ids.begin(), layer_ids.end()});
  }
  void expect_part(int layer_id, std::size_t first, std::size_t last) override {
    if (memory_ != nullptr) memory_->expect_part(layer_id, first, last);
  }
  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    Status silent;
    Status& listener = is_first_opening(layer_id) ? status_ : silent;
    if (memory_ == nullptr) {
      std::vector<DumpChunk> chunks = limited(index_.chunks(layer_id, listener), limits_);
      require_same_tokens(chunks, first_layer_);
      return std::make_unique<FolderStream>(std::move(chunks));
    }
    auto stream = std::make_unique<RemoteStream>(memory_, layer_id);
    const std::lock_guard lock(mutex_);
    for (const std::string& line : notices_[layer_id]) listener.notice(line);
    return stream;
  }

 private:
  [[nodiscard]] bool is_first_opening(int layer_id) {
    const std::lock_guard lock(mutex_);
    return opened_.insert(layer_id).second;
  }

  /// Layers are looked at before they are opened, each once.
  [[nodiscard]] std::vector<DumpChunk> chunks_at_server(int layer_id) {
    KeptNotices notices;
    std::vector<DumpChunk> chunks = limited(index_.chunks(layer_id, notices), limits_);
    if (layer_id != layer_ids_.front()) require_same_tokens(chunks, memory_->chunks(layer_ids_.front()));
    const std::lock_guard lock(mutex_);
    notices_[layer_id] = std::move(notices.lines);
    return chunks;
  }

  /// Without a word: open() says it.
  [[nodiscard]] std::vector<DumpChunk> chunks(int layer_id) {
    Status silent;
    return memory_ != nullptr ? memory_->chunks(layer_id) : limited(index_.chunks(layer_id, silent), limits_);
  }

  void describe() {
    const int layer_id = layer_ids_.front();
    first_layer_ = chunks(layer_id);
    const std::vector<DumpChunk>& first = first_layer_;
    for (const DumpChunk& chunk : first) {
      calibration_.sequences += static_cast<std::int64_t>(chunk.seq_lens.size());
      for (const std::int64_t length : chunk.seq_lens) calibration_.tokens += length;
    }
    if (!index_.manifest().is_null()) {
      model_ = model_identity_from_json(index_.manifest()["model"]);
      const CalibrationData whole = calibration_data_from_json(index_.manifest()["calibration"]);
      // A part of the data has a hash of its own.
      calibration_.blocks = blocks_of(whole.blocks, first);
      calibration_.data_sha256 = whole.tokens == calibration_.tokens
                                     ? whole.data_sha256
                                     : sha256_hex(whole.data_sha256 + " first " + std::to_string(calibration_.tokens) +
                                                  " in " + std::to_string(calibration_.sequences));
      return;
    }
    calibration_.data_sha256 = fingerprint(first, layer_id);
    const auto& q = first.front().q.location.shape;
    model_.num_layers = index_.layer_ids().back() + 1;
    model_.num_attention_heads = static_cast<int>(q[1]);
    model_.num_key_value_heads = static_cast<int>(first.front().k.location.shape[1]);
    model_.head_dim = static_cast<int>(q[2]);
  }

  DumpIndex index_;
  SourceLimits limits_;
  Status& status_;
  std::vector<int> layer_ids_;
  ModelIdentity model_;
  CalibrationData calibration_;
  std::vector<DumpChunk> first_layer_;
  std::mutex mutex_;
  std::set<int> opened_;                             // layers whose notices were said
  std::map<int, std::vector<std::string>> notices_;  // by layer
  std::shared_ptr<RemoteChunks> memory_;             // null: a dump on disk
};

}  // namespace

std::unique_ptr<QkvSource> open_dump(const fs::path& folder, const SourceLimits& limits, Status& status) {
  const RankLayout layout = find_ranks(folder);
  if (layout.ranks == 0) return std::make_unique<FolderSource>(limits, status, kMemoryBytes, folder);
  std::vector<std::unique_ptr<QkvSource>> ranks;
  static Status silent;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    Status& own = rank == 0 ? status : silent;  // the others would say the same again
    if (layout.in_files) {
      ranks.push_back(open_rank_files(layout, rank, limits));
    } else {
      const std::uint64_t share = kMemoryBytes / static_cast<std::uint64_t>(layout.ranks);
      ranks.push_back(std::make_unique<FolderSource>(limits, own, share, layout, rank));
    }
  }
  return merge_ranks(std::move(ranks));
}

}  // namespace oscar
