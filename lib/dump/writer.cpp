// SPDX-License-Identifier: MIT
#include "dump/writer.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/atomic_file.hpp"
#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/version.hpp"
#include "dump/chunk_file.hpp"

namespace oscar {
namespace {

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
