// SPDX-License-Identifier: MIT
// Dumps whose files changed after their manifest was written, in every format. More of what may happen to them is
// planted by tests/faults/drifted_dumps.py.
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

/// The path of a file of the dump, without its suffix: "layer_0/q/1".
using FileOf = std::function<fs::path(const char* name)>;

/// Another tensor in the place of a file.
auto another(const char* name, const char* what, const Tensor& tensor) {
  return [=](const fs::path&, const FileOf& file) { write_chunk(file(name), what, tensor); };
}

auto exchanged(const char* one, const char* other) {
  return [=](const fs::path&, const FileOf& file) {
    const std::string first = read_text(file(one)), second = read_text(file(other));
    write_file(file(one), second), write_file(file(other), first);
  };
}

/// In every format: what a dump says after a change.
void check(const std::string& said, const std::function<void(const fs::path& dump, const FileOf& file)>& change) {
  for (const std::string format : {"safetensors", "pt", "h5"}) {
    CAPTURE(format);
    const test::TemporaryFolder folder;
    Status status;
    const fs::path dump = folder / "dump";
    write_dump(*open_dump(foreign_dump(folder, "." + format), {}, status), dump, format, false, status);
    read_dump(dump);
    change(dump, [&](const char* name) { return dump / (name + ("." + format)); });
    CHECK_ERROR(read_dump(dump), DataError, said);
  }
}

}  // namespace

TEST_CASE("files of a dump that were exchanged for others are refused") {
  const char* const changed = "the file changed after the dump's manifest was written: its content is another";
  check(changed, exchanged("layer_0/q/1", "layer_1/q/1"));
  check(changed, exchanged("layer_0/k/1", "layer_0/k/2"));
  check("layer_0/", exchanged("layer_0/k/1", "layer_0/v/1"));  // names inside tell, but in .pt
  check(changed, another("layer_1/v/2", "v", rows(30, 1, 7)));
}

TEST_CASE("files of another type or number of tokens say what they have and what the manifest says") {
  check("the file has bfloat16 [30, 1, 4] at byte", another("layer_1/k/2", "k", convert(rows(30, 1, 7), DType::kBF16)));
  check("the file has float32 [29, 2, 4]", another("layer_0/q/2", "q", rows(29, 2, 7)));
}

TEST_CASE("files that were cut or went on, and files that nobody listed, are refused") {
  check("layer_0/v/1.", [](const fs::path&, const FileOf& file) {
    fs::resize_file(file("layer_0/v/1"), fs::file_size(file("layer_0/v/1")) - 200);
  });
  check("layer_0/v/1.", [](const fs::path&, const FileOf& file) {
    write_file(file("layer_0/v/1"), read_text(file("layer_0/v/1")) + std::string(70'000, '\0'));
  });
  check("manifest does not list this file",
        [](const fs::path&, const FileOf& file) { fs::copy(file("layer_1/v/1"), file("layer_1/v/3")); });
  check("manifest does not list this layer", [](const fs::path& dump, const FileOf&) {
    fs::copy(dump / "layer_1", dump / "layer_7", fs::copy_options::recursive);
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
