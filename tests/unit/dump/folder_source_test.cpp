// SPDX-License-Identifier: MIT
#include "dump/folder_source.hpp"

#include <doctest/doctest.h>

#include <array>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "support/support.hpp"
#include "tensor/pt.hpp"

namespace oscar {
namespace {

Tensor ramp(std::int64_t tokens, int heads, int dim) {
  Tensor tensor(DType::kF32, {tokens, heads, dim});
  float value = 0;
  for (float& v : tensor.values<float>()) v = value += 1;
  return tensor;
}

/// A chunk in the published layout: 2 query heads on 1 KV head, d = 4.
void write_chunk(const fs::path& layer, int chunk, const std::vector<std::int32_t>& lens) {
  std::int64_t tokens = 0;
  for (const std::int32_t n : lens) tokens += n;
  const std::string name = std::to_string(chunk) + ".pt";
  write_pt(layer / "q" / name, {ramp(tokens, 2, 4)});
  write_pt(layer / "k" / name, {ramp(tokens, 1, 4)});
  write_pt(layer / "v" / name, {ramp(tokens, 1, 4)});
  write_pt(layer / "seq_lens" / name, {Tensor::from({static_cast<std::int64_t>(lens.size())}, std::span(lens))});
}

std::vector<std::int64_t> chunk_tokens(LayerStream& layer) {
  std::vector<std::int64_t> tokens;
  QkvChunk chunk;
  while (layer.next(chunk)) tokens.push_back(chunk.view.q.num_tokens);
  return tokens;
}

void open_and_read(const fs::path& folder) {
  test::HeardStatus notes;
  const auto source = open_dump(folder, {}, notes);
  for (const int id : source->layer_ids()) chunk_tokens(*source->open(id));
}

constexpr std::array kLayers{3, 11};

void write_layers(const fs::path& folder) {
  for (const int layer : kLayers) {
    const fs::path own = folder / ("layer_" + std::to_string(layer));
    for (const char* part : {"q", "k", "v"}) {
      fs::create_directories(own / part);
      write_file(own / part / "1.pt", std::string(5000, part[0]));
    }
  }
}

void put(const fs::path& file, std::size_t at, char value) {
  std::string content = read_text(file);
  content.at(at) = value;
  write_file(file, content);
}

}  // namespace

TEST_CASE("the published layout: sparse layers, chunks in numerical order, a tiny warm-up left out with a notice") {
  const test::TemporaryFolder folder;
  for (const int layer : {3, 11}) {
    write_chunk(folder / ("layer_" + std::to_string(layer)), 0, {6});
    write_chunk(folder / ("layer_" + std::to_string(layer)), 2, {20, 12});
    write_chunk(folder / ("layer_" + std::to_string(layer)), 10, {30});
  }
  test::HeardStatus notes;

  const auto source = open_dump(folder.path(), {}, notes);
  const auto layer = source->open(11);

  CHECK(source->layer_ids() == std::vector<int>{3, 11});
  CHECK(chunk_tokens(*layer) == std::vector<std::int64_t>{32, 30});
  CHECK(notes.text.find("chunk 0 (6 tokens) is a warm-up") != std::string::npos);
  CHECK(source->calibration().tokens == 62);
  CHECK(source->calibration().sequences == 3);
  CHECK(source->model().num_attention_heads == 2);
  layer->rewind();
  QkvChunk chunk;
  REQUIRE(layer->next(chunk));
  CHECK(chunk.sequences.size() == 2);
  CHECK(chunk.sequences[1].begin == 20);
  std::vector<float> row(4);
  chunk.view.q.row(1, 1, row);
  CHECK(row == std::vector<float>{13, 14, 15, 16});
}

TEST_CASE("a chunk 0 that is not tiny, or the only one, is kept") {
  const test::TemporaryFolder folder;
  write_chunk(folder / "layer_0", 0, {17});
  write_chunk(folder / "layer_0", 1, {5});
  const test::TemporaryFolder another;
  write_chunk(another / "layer_1", 0, {2});
  test::HeardStatus notes;
  CHECK(chunk_tokens(*open_dump(folder.path(), {}, notes)->open(0)) == std::vector<std::int64_t>{17, 5});
  CHECK(chunk_tokens(*open_dump(another.path(), {}, notes)->open(1)) == std::vector<std::int64_t>{2});
  CHECK(notes.text.empty());
}

TEST_CASE("limits cut tokens, sequences and layers, and change the data's fingerprint") {
  const test::TemporaryFolder folder;
  write_chunk(folder / "layer_0", 1, {10, 10});
  write_chunk(folder / "layer_0", 2, {10});
  write_chunk(folder / "layer_1", 1, {10});
  test::HeardStatus notes;
  const auto tokens_at = [&](SourceLimits limits) {
    return chunk_tokens(*open_dump(folder.path(), limits, notes)->open(0));
  };
  CHECK(tokens_at({.max_tokens = 15}) == std::vector<std::int64_t>{15});
  CHECK(tokens_at({.max_tokens = 25}) == std::vector<std::int64_t>{20, 5});
  CHECK(tokens_at({.max_sequences = 1}) == std::vector<std::int64_t>{10});
  CHECK(open_dump(folder.path(), {.layers = {0}}, notes)->layer_ids() == std::vector<int>{0});
  CHECK_ERROR(open_dump(folder.path(), {.layers = {7}}, notes), UsageError, "no layer 7");
  CHECK(open_dump(folder.path(), {}, notes)->calibration().data_sha256 !=
        open_dump(folder.path(), {.max_tokens = 15}, notes)->calibration().data_sha256);
}

TEST_CASE("missing sequence lengths make a chunk one sequence, with a notice") {
  const test::TemporaryFolder folder;
  write_chunk(folder / "layer_0", 1, {10, 10});
  fs::remove_all(folder / "layer_0/seq_lens");
  test::HeardStatus notes;
  const auto source = open_dump(folder.path(), {}, notes);
  (void)source->open(0);
  CHECK(source->calibration().sequences == 1);
  CHECK(notes.text.find("one sequence") != std::string::npos);
}

TEST_CASE("bad dumps are errors that name the file and what is wrong") {
  const test::TemporaryFolder folder;
  const fs::path q = folder / "layer_0/q/1.pt", lens = folder / "layer_0/seq_lens/1.pt";
  const auto fresh = [&] { write_chunk(folder / "layer_0", 1, {8}); };

  CHECK_ERROR(open_and_read(folder / "none"), DataError, "no such folder");
  CHECK_ERROR(open_and_read(folder.path()), DataError, "no layer_<id> folders");
  fs::create_directories(folder / "layer_0/q");
  CHECK_ERROR(open_and_read(folder.path()), DataError, "no chunks");
  fresh();
  fs::remove(folder / "layer_0/v/1.pt");
  CHECK_ERROR(open_and_read(folder.path()), DataError, "v/1.pt");
  fresh();
  const std::string bytes = read_text(q);
  write_file(q, bytes.substr(0, bytes.size() / 2));
  CHECK_ERROR(open_and_read(folder.path()), DataError, "q/1.pt");
  write_pt(q, {ramp(7, 2, 4)});
  CHECK_ERROR(open_and_read(folder.path()), DataError, "different numbers of tokens: q [7, 2, 4]");
  write_pt(q, {ramp(8, 2, 6)});
  CHECK_ERROR(open_and_read(folder.path()), DataError, "different head dimensions");
  write_pt(q, {ramp(0, 2, 4)});
  CHECK_ERROR(open_and_read(folder.path()), DataError, "empty");
  const std::vector<std::int32_t> integers(64);
  write_pt(q, {Tensor::from({8, 2, 4}, std::span(integers))});
  CHECK_ERROR(open_and_read(folder.path()), DataError, "of int32");
  fresh();
  write_pt(folder / "layer_0/k/1.pt", {ramp(8, 3, 4)});
  CHECK_ERROR(open_and_read(folder.path()), DataError, "do not divide");
  fresh();
  const std::vector<std::int32_t> wrong{4, 5};
  write_pt(lens, {Tensor::from({2}, std::span(wrong))});
  CHECK_ERROR(open_and_read(folder.path()), DataError, "do not add up to 8");
}

TEST_CASE("a layer's fingerprint is of all of its files' names, sizes and ends, and of no other layer's") {
  const test::TemporaryFolder folder;
  write_layers(folder.path());
  const auto prints = fingerprint_layers(folder.path(), kLayers);
  CHECK(prints.size() == 2);
  CHECK(prints.at(3).size() == 64);
  CHECK(prints.at(3) != prints.at(11));
  const fs::path changed = folder / "layer_11" / "v" / "1.pt";
  const auto changes = [&] {
    const auto now = fingerprint_layers(folder.path(), kLayers);
    CHECK(now.at(3) == prints.at(3));
    return now.at(11) != prints.at(11);
  };
  put(changed, 4999, 'x');
  CHECK(changes());
  put(changed, 4999, 'v');
  CHECK_FALSE(changes());
  write_file(changed, std::string(5001, 'v'));
  CHECK(changes());
  fs::rename(changed, folder / "layer_11" / "v" / "2.pt");
  CHECK(changes());
}

TEST_CASE("layers of ranks have fingerprints too, and a layer without files has none") {
  const test::TemporaryFolder folder;
  write_file(folder / "layer_3_rank0.pt", "a");
  write_file(folder / "layer_3_rank1.pt", "b");
  write_file(folder / "notes.txt", "c");
  const auto prints = fingerprint_layers(folder.path(), kLayers);
  CHECK(prints.at(11).empty());
  write_file(folder / "layer_3_rank1.pt", "c");
  CHECK(fingerprint_layers(folder.path(), kLayers).at(3) != prints.at(3));
}

}  // namespace oscar
