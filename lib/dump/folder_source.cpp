// SPDX-License-Identifier: MIT
#include <algorithm>
#include <charconv>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/places.hpp"
#include "base/sha256.hpp"
#include "base/threads.hpp"
#include "base/version.hpp"
#include "dump/dump_index.hpp"
#include "dump/rank_source.hpp"
#include "dump/server_file.hpp"
#include "dump/source.hpp"

namespace oscar {
namespace {

void add(const std::string& text, Sha256& hash) { hash.update(std::as_bytes(std::span(text))); }

/// Adds its last 4 KB, which hold an archive's directory with its checksums.
void add_end(const fs::path& file, std::uint64_t size, Sha256& hash) {
  std::vector<std::byte> end(std::min<std::uint64_t>(size, 4096));
  read_at(file, size - end.size(), end);
  hash.update(end);
}

/// A fingerprint of a foreign dump. It tells which tokens they are, and stands in published sets: one layer is enough,
/// and must stay the first. Whether other layers are what they were is told by fingerprint_layers().
std::string fingerprint(const std::vector<DumpChunk>& chunks, int layer_id) {
  Sha256 hash;
  for (const DumpChunk& chunk : chunks) {
    add("layer " + std::to_string(layer_id) + " chunk " + std::to_string(chunk.number), hash);
    for (const std::int64_t length : chunk.seq_lens) add(" " + std::to_string(length), hash);
    for (const ChunkTensor* tensor : {&chunk.q, &chunk.k, &chunk.v}) {
      const std::uint64_t size = regular_file_size(tensor->file);
      add(std::to_string(size), hash);
      add_end(tensor->file, size, hash);
    }
  }
  return hash.hex();
}

/// Of layer_3/q/1.pt, layer_3_rank0/q/1.pt or layer_3_rank0.pt; -1 for other paths.
int layer_of(const fs::path& path) {
  const std::string first = path.begin()->string();
  constexpr std::string_view kStart = "layer_";
  int id = -1;
  if (first.starts_with(kStart)) std::from_chars(first.data() + kStart.size(), first.data() + first.size(), id);
  return id;
}

std::string fingerprint_files(const fs::path& dump, const std::vector<fs::path>& files) {
  if (files.empty()) return "";
  Sha256 hash;
  for (const fs::path& file : files) {
    const std::uint64_t size = regular_file_size(dump / file);
    add(file.generic_string() + " " + std::to_string(size) + " ", hash);
    add_end(dump / file, size, hash);
  }
  return hash.hex();
}

/// All layers of a dump are of the same tokens. Throws DataError that names the first chunk that differs.
void require_same_tokens(const std::vector<DumpChunk>& chunks, const std::vector<DumpChunk>& of_first_layer) {
  const std::size_t count = std::max(chunks.size(), of_first_layer.size());
  for (std::size_t i = 0; i < count; ++i) {
    const DumpChunk* const own = i < chunks.size() ? &chunks[i] : nullptr;
    const DumpChunk* const first = i < of_first_layer.size() ? &of_first_layer[i] : nullptr;
    if (own != nullptr && first != nullptr && own->number == first->number && own->seq_lens == first->seq_lens)
      continue;
    throw DataError("this chunk has other sequences than that of the dump's first layer, or only one of them has it",
                    (own != nullptr ? own : first)->q.file.string(),
                    "take away the chunks that not all layers have, or dump again");
  }
}

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
    out.where = where(chunk);
    return true;
  }

  /// Opens no file.
  bool skip(QkvChunk& out) override {
    if (next_ == chunks_.size()) return false;
    const DumpChunk& chunk = chunks_[next_++];
    out = {.view = {}, .owner = nullptr, .sequences = ranges_of(chunk.seq_lens), .where = where(chunk)};
    out.view = {without_rows(chunk.q), without_rows(chunk.k), without_rows(chunk.v)};
    for (HeadsView* rows : {&out.view.q, &out.view.k, &out.view.v}) rows->num_tokens = out.sequences.back().end;
    return true;
  }

  void rewind() override { next_ = 0; }

 private:
  struct Files {
    MappedFile q, k, v;
  };

  /// Of q, k and v.
  static std::string where(const DumpChunk& chunk) {
    return chunk.q.file.parent_path().parent_path().string() + ", chunk " + std::to_string(chunk.number);
  }

  static HeadsView without_rows(const ChunkTensor& tensor) {
    const std::vector<std::int64_t>& shape = tensor.location.shape;
    return {nullptr, tensor.location.dtype, shape[0], static_cast<int>(shape[1]), static_cast<int>(shape[2])};
  }

  static HeadsView view(const MappedFile& file, const ChunkTensor& tensor, std::int64_t tokens) {
    const TensorLocation& place = tensor.location;
    HeadsView whole = without_rows(tensor);
    whole.data = file.bytes().data() + place.offset;
    whole.file = {file.descriptor(), place.offset};
    const auto needed = static_cast<std::uint64_t>(whole.bytes_per_token()) * static_cast<std::uint64_t>(tokens);
    if (place.offset > file.bytes().size() || needed > file.bytes().size() - place.offset) {
      throw DataError("the file became shorter while it was read", tensor.file.string(), "dump this layer again");
    }
    return whole.tokens(0, tokens);
  }

  std::vector<DumpChunk> chunks_;
  std::size_t next_ = 0;
};

/// Does not show the address, which may hold a password.
[[noreturn]] void refuse_address(const std::string& address) {
  throw UsageError(
      "a dump is read from a folder on disk, not from an address",
      "--dump " + address.substr(0, address.find("://") + 3) + "…",
      "copy the folder to disk; or run \"oscar fit --dump DIR --save-stats FILE\" where it lies, and fit with "
      "--stats FILE");
}

class FolderSource : public QkvSource {
 public:
  /// index: arguments of a DumpIndex.
  template <class... Index>
  FolderSource(SourceLimits limits, Status& status, const Index&... index)
      : index_(index...), limits_(std::move(limits)), status_(status) {
    layer_ids_ = chosen_layers(index_.layer_ids(), limits_.layers, index_.folder());
    describe();
  }

  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    Status silent;
    Status& listener = is_first_opening(layer_id) ? status_ : silent;
    std::vector<DumpChunk> chunks = limited(index_.chunks(layer_id, listener), limits_);
    require_same_tokens(chunks, first_layer_);
    return std::make_unique<FolderStream>(std::move(chunks));
  }

 private:
  [[nodiscard]] bool is_first_opening(int layer_id) {
    const std::lock_guard lock(mutex_);
    return opened_.insert(layer_id).second;
  }

  void describe() {
    const int layer_id = layer_ids_.front();
    Status silent;  // open() says it
    first_layer_ = limited(index_.chunks(layer_id, silent), limits_);
    const std::vector<DumpChunk>& first = first_layer_;
    std::vector<std::int64_t> lengths;
    for (const DumpChunk& chunk : first) lengths.insert(lengths.end(), chunk.seq_lens.begin(), chunk.seq_lens.end());
    calibration_.sequences = std::ssize(lengths);
    calibration_.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    if (!index_.manifest().is_null()) {
      model_ = model_identity_from_json(index_.manifest()["model"]);
      const CalibrationData whole = calibration_data_from_json(index_.manifest()["calibration"]);
      // A part of the data has a hash of its own.
      calibration_.blocks = blocks_within(whole.blocks, lengths);
      calibration_.data_sha256 = whole.tokens == calibration_.tokens
                                     ? whole.data_sha256
                                     : sha256_hex(whole.data_sha256 + " first " + std::to_string(calibration_.tokens) +
                                                  " in " + std::to_string(calibration_.sequences));
      return;
    }
    calibration_.data_sha256 = fingerprint(first, layer_id);
    const auto& q = first.front().q.location.shape;
    model_.num_layers = index_.layer_ids().back() + 1;
    if (std::ssize(index_.layer_ids()) < model_.num_layers) model_.cache_layers = index_.layer_ids();
    model_.num_attention_heads = static_cast<int>(q[1]);
    model_.num_key_value_heads = static_cast<int>(first.front().k.location.shape[1]);
    model_.head_dim = static_cast<int>(q[2]);
    const auto value_dim = static_cast<int>(first.front().v.location.shape[2]);
    if (value_dim != model_.head_dim) model_.value_dim = value_dim;
  }

  DumpIndex index_;
  SourceLimits limits_;
  Status& status_;
  std::vector<DumpChunk> first_layer_;
  std::mutex mutex_;
  std::set<int> opened_;  // layers whose notices were said
};

std::set<fs::path> files_by_manifest(const fs::path& folder) {
  const fs::path path = folder / "manifest.json";
  const Json manifest = read_json(path);
  validate_json(manifest, "oscar.dump.v1", path.string());
  const std::string suffix = chunk_suffix(manifest["format"].get<std::string>());
  std::set<fs::path> files{"manifest.json"};
  for (const Json& layer : manifest["layers"]) {
    const fs::path own = "layer_" + std::to_string(layer["layer_id"].get<int>());
    for (const Json& chunk : layer["chunks"]) {
      for (const char* what : {"q", "k", "v", "seq_lens"}) {
        files.insert(own / what / (std::to_string(chunk["chunk"].get<int>()) + suffix));
      }
    }
  }
  return files;
}

/// Returns what a new dump may replace, for an AtomicFolder: if `replace`, a folder that holds a dump of ours and
/// nothing but the files that its manifest tells of; else nothing.
RequireOurs replaceable_dump(bool replace) {
  if (!replace) return {};
  return [](const fs::path& folder) {
    std::set<fs::path> ours;
    try {
      ours = files_by_manifest(folder);
    } catch (const Error&) {
      throw UsageError("refusing to replace a folder that is not a dump of oscar", folder.string(),
                       "choose another output, or remove the folder yourself");
    }
    require_only(folder, ours, "a dump");
  };
}

constexpr const char* kSchema = "oscar.dump.v1";

Tensor tensor_of(const HeadsView& view) {
  Tensor tensor(view.dtype, {view.num_tokens, view.num_heads, view.head_dim});
  std::copy_n(view.data, tensor.data.size(), tensor.data.begin());
  return tensor;
}

std::vector<std::int32_t> lengths_of(const QkvChunk& chunk) {
  std::vector<std::int32_t> lengths;
  for (const SequenceRange& range : chunk.sequences) {
    OSCAR_CHECK(range.size() > 0 && range.size() <= std::numeric_limits<std::int32_t>::max());
    lengths.push_back(static_cast<std::int32_t>(range.size()));
  }
  return lengths;
}

/// Builds the folder's files and, along the way, the manifest.
class Writer {
 public:
  Writer(fs::path folder, std::string format, Status& status)
      : folder_(std::move(folder)), format_(std::move(format)), suffix_(chunk_suffix(format_)), status_(status) {}

  void write_layer(int layer_id, LayerStream& stream) {
    const fs::path layer = folder_ / ("layer_" + std::to_string(layer_id));
    Json chunks = Json::array();
    QkvChunk chunk;
    std::int64_t tokens = 0;
    while (stream.next(chunk)) {
      throw_if_interrupted();
      chunks.push_back(add_chunk(layer_id, layer, static_cast<int>(chunks.size()) + 1, chunk));
      tokens += chunk.view.q.num_tokens;
      status_.detail("wrote " + chunk.where);
    }
    summary_.layers += 1;
    summary_.chunks = static_cast<std::int64_t>(chunks.size());
    summary_.tokens = tokens;
    layers_.push_back({{"layer_id", layer_id}, {"chunks", std::move(chunks)}});
  }

  DumpSummary finish(const QkvSource& source) {
    OSCAR_CHECK(dtype_.has_value());
    const Json manifest{{"schema", kSchema},
                        {"oscar_version", kVersion},
                        {"model", to_json(source.model())},
                        {"calibration", to_json(source.calibration())},
                        {"format", format_},
                        {"dtype", name_of(*dtype_)},
                        {"layers", std::move(layers_)}};
    const fs::path path = folder_ / "manifest.json";
    validate_json(manifest, kSchema, path.string());
    write_json(path, manifest);
    for (const fs::path& file : list_files(folder_)) summary_.bytes += regular_file_size(folder_ / file);
    summary_.dtype = *dtype_;
    return summary_;
  }

 private:
  Json add_chunk(int layer_id, const fs::path& layer, int number, const QkvChunk& chunk) {
    const std::string name = std::to_string(number) + suffix_;
    Json offsets = Json::object(), files = Json::object();
    const std::vector<std::int32_t> lengths = lengths_of(chunk);
    DumpChunk described{.number = number, .q = {}, .k = {}, .v = {}, .seq_lens = {lengths.begin(), lengths.end()}};
    const auto write = [&](const char* what, const HeadsView& rows) {
      if (!dtype_) dtype_ = rows.dtype;
      if (*dtype_ != rows.dtype) {
        throw DataError("the chunks are of different types: " + std::string(name_of(*dtype_)) + " and " +
                            std::string(name_of(rows.dtype)),
                        chunk.where, "dump this layer again");
      }
      const fs::path file = layer / what / name;
      write_chunk(file, what, tensor_of(rows));
      const ChunkTensor written{file, locate_chunk(file, what)};
      offsets[what] = written.location.offset;
      files[what] = record_file(written, role_of(layer_id, described, what));
    };
    write("q", chunk.view.q);
    write("k", chunk.view.k);
    write("v", chunk.view.v);
    write_chunk(layer / "seq_lens" / name, "seq_lens",
                Tensor::from({static_cast<std::int64_t>(lengths.size())}, lengths));
    files["seq_lens"] = record_small_file(layer / "seq_lens" / name);
    return {{"chunk", number},
            {"tokens", chunk.view.q.num_tokens},
            {"offsets", offsets},
            {"seq_lens", lengths},
            {"files", files}};
  }

  fs::path folder_;
  std::string format_, suffix_;
  Status& status_;
  std::optional<DType> dtype_;
  Json layers_ = Json::array();
  DumpSummary summary_;
};

}  // namespace

std::unique_ptr<QkvSource> open_dump(const fs::path& folder, const SourceLimits& limits, Status& status) {
  if (is_remote(folder)) refuse_address(folder.string());
  const RankLayout layout = find_ranks(folder);
  if (layout.ranks == 0) return std::make_unique<FolderSource>(limits, status, folder);
  if (!layout.remark.empty()) status.notice(layout.remark);
  std::vector<std::unique_ptr<QkvSource>> ranks;
  static Status silent;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    Status& own = rank == 0 ? status : silent;  // the others would say the same again
    if (layout.in_files) {
      ranks.push_back(open_rank_files(layout, rank, limits));
    } else {
      const auto folder_of = [layout, rank](int layer_id) { return layout.path(layer_id, rank); };
      ranks.push_back(std::make_unique<FolderSource>(limits, own, layout.layer_ids, folder_of));
    }
  }
  return merge_ranks(std::move(ranks));
}

std::map<int, std::string> fingerprint_layers(const fs::path& dump, std::span<const int> layer_ids) {
  std::vector<std::vector<fs::path>> files(layer_ids.size());
  for (const auto& entry : fs::directory_iterator(dump)) {
    const fs::path name = entry.path().filename();
    std::vector<fs::path> own;
    if (entry.is_regular_file()) own.push_back(name);
    if (entry.is_directory() && layer_of(name) >= 0) {
      constexpr auto kWithLinks = fs::directory_options::follow_directory_symlink;
      for (const auto& inner : fs::recursive_directory_iterator(entry.path(), kWithLinks)) {
        if (inner.is_regular_file()) own.push_back(inner.path().lexically_relative(dump));
      }
    }
    const bool all = name.string().starts_with(kRowsOfRank);
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (all || layer_ids[i] == layer_of(name)) files[i].insert(files[i].end(), own.begin(), own.end());
    }
  }
  for (std::vector<fs::path>& of_layer : files) std::sort(of_layer.begin(), of_layer.end());
  std::vector<std::string> prints(layer_ids.size());
  parallel_for(prints.size(), [&](std::size_t i) { prints[i] = fingerprint_files(dump, files[i]); });
  std::map<int, std::string> all;
  for (std::size_t i = 0; i < prints.size(); ++i) all[layer_ids[i]] = prints[i];
  return all;
}

DumpSummary write_dump(QkvSource& source, const fs::path& folder, const std::string& format, bool replace,
                       Status& status) {
  (void)chunk_suffix(format);
  AtomicFolder out(folder, replaceable_dump(replace));
  Writer writer(out.path(), format, status);
  for (const int layer_id : source.layer_ids()) {
    throw_if_interrupted();
    writer.write_layer(layer_id, *source.open(layer_id));
  }
  const DumpSummary summary = writer.finish(source);
  out.commit();
  return summary;
}

}  // namespace oscar
