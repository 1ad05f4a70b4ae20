// SPDX-License-Identifier: MIT
// A live model as a source, and dumps written from it.
#include "dump/writer.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "dump/folder_source.hpp"
#include "dump/live_source.hpp"
#include "model/tokenizer/tokens.hpp"
#include "model/weights/layout.hpp"
#include "support/support.hpp"
#include "tensor/pt.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

/// A layer's rows, chunk after chunk.
struct LayerBytes {
  std::vector<std::byte> q, k, v;
  std::vector<std::vector<std::int64_t>> lengths;  // by chunk
  friend bool operator==(const LayerBytes&, const LayerBytes&) = default;
};

void append(const HeadsView& view, std::vector<std::byte>& out) {
  out.insert(out.end(), view.data, view.data + view.num_tokens * view.bytes_per_token());
}

LayerBytes read_all(LayerStream& stream) {
  LayerBytes all;
  QkvChunk chunk;
  while (stream.next(chunk)) {
    append(chunk.view.q, all.q);
    append(chunk.view.k, all.k);
    append(chunk.view.v, all.v);
    all.lengths.emplace_back();
    for (const SequenceRange& range : chunk.sequences) all.lengths.back().push_back(range.size());
  }
  return all;
}

class Fixture {
 public:
  std::unique_ptr<QkvSource> live(const LiveOptions& options = {.chunk_tokens = 100}) {
    runner_ = open_model(model);
    return open_live(*runner_, sequences, options, status);
  }
  void dump(const fs::path& folder, const LiveOptions& options = {.chunk_tokens = 100},
            const std::string& format = "pt") {
    write_dump(*live(options), folder, format, false, status);
  }

  fs::path model = test::data("qwen3-2m");
  std::vector<TokenSequence> sequences = read_tokens(test::data("golden/qwen3-2m/tokens_calib.npy"),
                                                     {.seq_len = 60, .max_tokens = 250, .max_sequences = 0});
  Status status;
  test::TemporaryFolder folder;

 private:
  std::unique_ptr<ModelRunner> runner_;
};

const std::vector<std::vector<std::int64_t>> kGrouped{{60}, {60}, {60}, {60, 10}};

}  // namespace

TEST_CASE("a dump holds what the live model yields, with and without its manifest") {
  Fixture f;
  f.dump(f.folder / "dump");
  const auto live = f.live();
  const auto dump = open_dump(f.folder / "dump", {}, f.status);
  CHECK(dump->model() == live->model());
  CHECK(dump->calibration() == live->calibration());
  CHECK(dump->calibration() == describe(f.sequences));
  CHECK(dump->layer_ids() == std::vector<int>{0, 1, 2, 3});
  fs::copy(f.folder / "dump", f.folder / "foreign", fs::copy_options::recursive);
  fs::remove(f.folder / "foreign/manifest.json");
  const auto foreign = open_dump(f.folder / "foreign", {}, f.status);
  for (const int layer : dump->layer_ids()) {
    const LayerBytes bytes = read_all(*live->open(layer));
    CHECK(bytes.q.size() == 250 * 3 * 128 * sizeof(std::uint16_t));
    CHECK(bytes.lengths == kGrouped);
    CHECK((read_all(*dump->open(layer)) == bytes));
    CHECK((read_all(*foreign->open(layer)) == bytes));
  }
}

TEST_CASE("the files are bare tensors in the checkpoint's type, in chunks from 1") {
  Fixture f;
  f.dump(f.folder / "dump");
  const Tensor q = read_pt_tensor(f.folder / "dump/layer_3/q/4.pt");
  CHECK(q.dtype == DType::kBF16);
  CHECK(q.shape == std::vector<std::int64_t>{70, 3, 128});
  CHECK(read_pt_tensor(f.folder / "dump/layer_3/k/1.pt").shape == std::vector<std::int64_t>{60, 1, 128});
  const Tensor lengths = read_pt_tensor(f.folder / "dump/layer_3/seq_lens/4.pt");
  CHECK(lengths.dtype == DType::kI32);
  CHECK(lengths.to_int64() == std::vector<std::int64_t>{60, 10});
  CHECK(list_files(f.folder / "dump").size() == 4 * 4 * 4 + 1);
  const Json manifest = read_json(f.folder / "dump/manifest.json");
  validate_json(manifest, "oscar.dump.v1", "");
  CHECK(manifest["layers"][3]["chunks"][3]["seq_lens"] == Json({60, 10}));
}

TEST_CASE("every format holds the same rows, with and without its manifest") {
  Fixture f;
  for (const std::string dtype : {"bfloat16", "float16", "float32"}) {
    const LiveOptions options{.dtype = dtype, .chunk_tokens = 100};
    f.dump(f.folder / (dtype + "pt"), options);
    const auto expected = open_dump(f.folder / (dtype + "pt"), {}, f.status);
    for (const std::string format : {"h5", "safetensors"}) {
      const fs::path folder = f.folder / (dtype + format);
      f.dump(folder, options, format);
      CHECK(fs::exists(folder / "layer_2/seq_lens" / ("4." + format)));
      for (const bool with_manifest : {true, false}) {
        if (!with_manifest) fs::remove(folder / "manifest.json");
        const auto dump = open_dump(folder, {}, f.status);
        CHECK((read_all(*dump->open(2)) == read_all(*expected->open(2))));
      }
    }
  }
  CHECK_ERROR(f.dump(f.folder / "x", {}, "zip"), UsageError, "use pt, h5 or safetensors");
  CHECK(!fs::exists(f.folder / "x"));
}

TEST_CASE("the rows of a dump say where in their file they lie") {
  Fixture f;
  f.dump(f.folder / "dump");
  const auto stream = open_dump(f.folder / "dump", {}, f.status)->open(1);
  QkvChunk chunk;
  while (stream->next(chunk)) {
    const HeadsView rows = chunk.view.k.tokens(chunk.view.k.num_tokens / 2, chunk.view.k.num_tokens);
    std::vector<std::byte> read(static_cast<std::size_t>(rows.num_tokens * rows.bytes_per_token()));
    REQUIRE(::pread(rows.file.descriptor, read.data(), read.size(), static_cast<off_t>(rows.file.offset)) ==
            static_cast<ssize_t>(read.size()));
    CHECK(std::equal(read.begin(), read.end(), rows.data));
  }
}

TEST_CASE("a chosen type holds the same values, rounded once") {
  Fixture f;
  f.dump(f.folder / "f32", {.dtype = "float32", .chunk_tokens = 100});
  f.dump(f.folder / "bf16");
  f.dump(f.folder / "f16", {.dtype = "float16", .chunk_tokens = 100});
  const Tensor exact = read_pt_tensor(f.folder / "f32/layer_2/k/1.pt");
  CHECK(exact.dtype == DType::kF32);
  CHECK(convert(exact, DType::kBF16).data == read_pt_tensor(f.folder / "bf16/layer_2/k/1.pt").data);
  CHECK(convert(exact, DType::kF16).data == read_pt_tensor(f.folder / "f16/layer_2/k/1.pt").data);
}

TEST_CASE("chosen layers are the same as in a dump of all") {
  Fixture f;
  f.dump(f.folder / "all");
  f.dump(f.folder / "some", {.layers = {3, 1, 3}, .chunk_tokens = 100});
  const auto all = open_dump(f.folder / "all", {}, f.status), some = open_dump(f.folder / "some", {}, f.status);
  CHECK(some->layer_ids() == std::vector<int>{1, 3});
  for (const int layer : some->layer_ids()) {
    CHECK((read_all(*some->open(layer)) == read_all(*all->open(layer))));
  }
  CHECK_ERROR(f.live({.layers = {4}}), UsageError, "the model has no layer 4 | --layers | name layers from 0 to 3");
}

TEST_CASE("a live layer can be read again, and stays when the next is opened") {
  Fixture f;
  const auto live = f.live({.chunk_tokens = 1});
  const auto first = live->open(0);
  const LayerBytes once = read_all(*first);
  CHECK(once.lengths.size() == f.sequences.size());
  const auto second = live->open(2);
  first->rewind();
  CHECK((read_all(*first) == once));
  CHECK(!(read_all(*second) == once));
}

TEST_CASE("values that are not finite stop the dump and leave nothing") {
  Fixture f;
  fs::create_directory(f.folder / "broken");
  for (const char* name : {"config.json", "tokenizer.json"}) fs::copy(f.model / name, f.folder / "broken" / name);
  std::vector<std::pair<std::string, Tensor>> weights;
  const SafetensorsFile file(f.model / "model-00001-of-00001.safetensors");
  for (const auto& [name, tensor] : file.tensors()) {
    weights.emplace_back(name, tensor.copy());
    if (name == layer_weight_name(2, "self_attn.v_proj.weight")) {
      weights.back().second.values<std::uint16_t>()[0] = bf16_from_float(NAN);
    }
  }
  write_safetensors(f.folder / "broken/model.safetensors", weights, {});
  f.model = f.folder / "broken";
  CHECK_ERROR((f.dump(f.folder / "out"), 0), DataError,
              "v has values that are not finite in bfloat16 | broken, layer 2");
  for (const auto& entry : fs::directory_iterator(f.folder.path())) CHECK(entry.path().filename() == "broken");
}

TEST_CASE("an output that exists is kept unless it may be replaced") {
  Fixture f;
  write_file(f.folder / "out/precious", "");
  CHECK_ERROR((f.dump(f.folder / "out"), 0), UsageError, "the output exists already");
  CHECK(fs::exists(f.folder / "out/precious"));
  CHECK_ERROR(write_dump(*f.live(), f.folder / "out", "pt", true, f.status), UsageError, "not a dump of oscar");
  fs::remove(f.folder / "out/precious");
  for (int i = 0; i < 2; ++i) write_dump(*f.live(), f.folder / "out", "pt", true, f.status);
  write_file(f.folder / "out/layer_0/precious", "");
  CHECK_ERROR(write_dump(*f.live(), f.folder / "out", "pt", true, f.status), UsageError, "layer_0/precious");
  CHECK(fs::exists(f.folder / "out/manifest.json"));
}

}  // namespace oscar
