// SPDX-License-Identifier: MIT
// Dumps whose files changed after their manifest was written.
#include "dump/chunk_file.hpp"

#include <doctest/doctest.h>

#include <functional>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "dump/dump_index.hpp"
#include "dump/folder_source.hpp"
#include "dump/writer.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

/// 2 query heads on 1 KV head, d = 4; values count on from `value`.
Tensor rows(std::int64_t tokens, int heads, float value) {
  Tensor tensor(DType::kF32, {tokens, heads, 4});
  for (float& v : tensor.values<float>()) v = value += 0.25F;
  return tensor;
}

/// Two layers of two chunks with 30 tokens, in the published layout.
fs::path foreign_dump(const test::TemporaryFolder& folder, const std::string& suffix) {
  const fs::path dump = folder / "foreign";
  for (int i = 0; i < 4; ++i) {
    const fs::path layer = dump / ("layer_" + std::to_string(i / 2));
    const std::string name = std::to_string(i % 2 + 1) + suffix;
    const auto start = static_cast<float>(1000 * i);
    write_chunk(layer / "q" / name, "q", rows(30, 2, start));
    write_chunk(layer / "k" / name, "k", rows(30, 1, start + 300));
    write_chunk(layer / "v" / name, "v", rows(30, 1, start + 600));
    write_chunk(layer / "seq_lens" / name, "seq_lens", Tensor::from({2}, std::vector<std::int32_t>{10, 20}));
  }
  return dump;
}

void read_dump(const fs::path& dump) {
  Status status;
  QkvChunk chunk;
  const auto source = open_dump(dump, {}, status);
  for (const int id : source->layer_ids()) {
    const auto stream = source->open(id);
    while (stream->next(chunk)) CHECK(chunk.view.q.num_tokens == 30);
  }
}

void swap_files(const fs::path& a, const fs::path& b) {
  const std::string one = read_text(a), other = read_text(b);
  write_file(a, other), write_file(b, one);
}

using Change = std::function<void(const fs::path& dump, const std::string& suffix)>;

void change_manifest(const fs::path& dump, const std::function<void(Json&)>& change) {
  Json manifest = read_json(dump / "manifest.json");
  change(manifest);
  write_json(dump / "manifest.json", manifest);
}

/// In every format: what a dump says after a change.
void check(const std::string& said, const Change& change) {
  for (const std::string format : {"safetensors", "pt", "h5"}) {
    CAPTURE(format);
    const test::TemporaryFolder folder;
    Status status;
    write_dump(*open_dump(foreign_dump(folder, "." + format), {}, status), folder / "dump", format, false, status);
    read_dump(folder / "dump");
    change(folder / "dump", "." + format);
    CHECK_ERROR(read_dump(folder / "dump"), DataError, said);
  }
}

}  // namespace

TEST_CASE("files of a dump that were exchanged for others are refused") {
  const char* const changed = "the file changed after the dump's manifest was written: its content is another";
  check(changed, [](const fs::path& dump, const std::string& suffix) {
    swap_files(dump / ("layer_0/q/1" + suffix), dump / ("layer_1/q/1" + suffix));
  });
  check(changed, [](const fs::path& dump, const std::string& suffix) {
    swap_files(dump / ("layer_0/k/1" + suffix), dump / ("layer_0/k/2" + suffix));
  });
  check("layer_0/", [](const fs::path& dump, const std::string& suffix) {  // names inside tell, but in .pt
    swap_files(dump / ("layer_0/k/1" + suffix), dump / ("layer_0/v/1" + suffix));
  });
  check(changed, [](const fs::path& dump, const std::string& suffix) {
    write_chunk(dump / ("layer_1/v/2" + suffix), "v", rows(30, 1, 7));
  });
}

TEST_CASE("files of another type or number of tokens say what they have and what the manifest says") {
  check("the file has bfloat16 [30, 1, 4] at byte", [](const fs::path& dump, const std::string& suffix) {
    write_chunk(dump / ("layer_1/k/2" + suffix), "k", convert(rows(30, 1, 7), DType::kBF16));
  });
  for (const int tokens : {29, 31}) {
    check("the file has float32 [" + std::to_string(tokens) + ", 2, 4]",
          [&](const fs::path& dump, const std::string& suffix) {
            write_chunk(dump / ("layer_0/q/2" + suffix), "q", rows(tokens, 2, 7));
          });
  }
}

TEST_CASE("files that were cut, went on, or are gone, and files that nobody listed, are refused") {
  check("layer_0/v/1.", [](const fs::path& dump, const std::string& suffix) {
    const fs::path file = dump / ("layer_0/v/1" + suffix);
    fs::resize_file(file, fs::file_size(file) - 200);
  });
  check("layer_0/v/1.", [](const fs::path& dump, const std::string& suffix) {
    const fs::path file = dump / ("layer_0/v/1" + suffix);
    std::string content = read_text(file) + std::string(70'000, '\0');
    write_file(file, content);
  });
  check("no such file",
        [](const fs::path& dump, const std::string& suffix) { fs::remove(dump / ("layer_1/v/1" + suffix)); });
  check("manifest does not list this file", [](const fs::path& dump, const std::string& suffix) {
    fs::copy(dump / ("layer_1/v/1" + suffix), dump / ("layer_1/v/3" + suffix));
  });
  check("manifest does not list this layer", [](const fs::path& dump, const std::string&) {
    fs::copy(dump / "layer_1", dump / "layer_7", fs::copy_options::recursive);
  });
}

TEST_CASE("sequence lengths of manifest and files are the same, and a manifest lists each layer and chunk once") {
  check("the file changed", [](const fs::path& dump, const std::string&) {
    change_manifest(dump, [](Json& manifest) { manifest["layers"][1]["chunks"][0]["seq_lens"] = {15, 15}; });
  });
  check("the file changed", [](const fs::path& dump, const std::string& suffix) {
    write_chunk(dump / ("layer_1/seq_lens/2" + suffix), "seq_lens", Tensor::from({1}, std::vector<std::int32_t>{30}));
  });
  check("chunk 2 follows 2", [](const fs::path& dump, const std::string&) {
    change_manifest(
        dump, [](Json& manifest) { manifest["layers"][1]["chunks"].push_back(manifest["layers"][1]["chunks"][1]); });
  });
  check("layer_id 0 follows 1", [](const fs::path& dump, const std::string&) {
    change_manifest(dump, [](Json& manifest) { manifest["layers"].push_back(manifest["layers"][0]); });
  });
}

TEST_CASE("a flipped bit that no sample has is found where every byte is read") {
  const test::TemporaryFolder folder;
  Status status;
  write_dump(*open_dump(foreign_dump(folder, ".safetensors"), {}, status), folder / "dump", "safetensors", false,
             status);
  const DumpIndex index(folder / "dump");
  const ChunkTensor q = index.chunks(0, status).front().q;
  require_unchanged(q);
  std::string content = read_text(q.file);
  content[q.location.offset + 100] ^= 1;
  write_file(q.file, content);
  CHECK_ERROR(require_unchanged(q), DataError, "its content is another");
}

TEST_CASE("layers of a server's dump have the same sequences in the same chunks") {
  for (const bool fewer : {false, true}) {
    const test::TemporaryFolder folder;
    const fs::path dump = foreign_dump(folder, ".safetensors");
    read_dump(dump);
    if (fewer) {
      for (const char* what : {"q", "k", "v", "seq_lens"}) fs::remove(dump / "layer_1" / what / "2.safetensors");
    } else {
      write_chunk(dump / "layer_1/seq_lens/2.safetensors", "seq_lens",
                  Tensor::from({2}, std::vector<std::int32_t>{20, 10}));
    }
    CHECK_ERROR(read_dump(dump), DataError, "other sequences than that of the dump's first layer");
  }
}

}  // namespace oscar
