// SPDX-License-Identifier: MIT
// A live model as a source, and rows of a dump written from it. What a dump holds: tests/cli/dump.
#include <doctest/doctest.h>
#include <unistd.h>

#include "dump/live_source.hpp"
#include "dump/source.hpp"
#include "model/tokenizer/tokens.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

using Lengths = std::vector<std::vector<std::int64_t>>;  // of sequences, by chunk

struct Fixture {
  std::unique_ptr<ModelRunner> runner = open_model(test::data("qwen3-2m"));
  std::vector<TokenSequence> sequences = read_tokens(test::data("golden/qwen3-2m/tokens_calib.npy"),
                                                     {.seq_len = 60, .max_tokens = 250, .max_sequences = 0});
  Status status;
  std::unique_ptr<QkvSource> live = open_live(*runner, sequences, {.chunk_tokens = 100}, status);
};

/// A layer's keys, chunk after chunk.
std::pair<std::vector<std::byte>, Lengths> read_keys(LayerStream& stream) {
  std::vector<std::byte> rows;
  Lengths lengths;
  QkvChunk chunk;
  while (stream.next(chunk)) {
    const HeadsView& k = chunk.view.k;
    rows.insert(rows.end(), k.data, k.data + k.num_tokens * k.bytes_per_token());
    lengths.emplace_back();
    for (const SequenceRange& range : chunk.sequences) lengths.back().push_back(range.size());
  }
  return {rows, lengths};
}

}  // namespace

TEST_CASE("the rows of a dump say where in their file they lie") {
  Fixture f;
  const test::TemporaryFolder folder;
  write_dump(*f.live, folder / "dump", "pt", false, f.status);
  const auto stream = open_dump(folder / "dump", {}, f.status)->open(1);
  QkvChunk chunk;
  while (stream->next(chunk)) {
    const HeadsView rows = chunk.view.k.tokens(chunk.view.k.num_tokens / 2, chunk.view.k.num_tokens);
    std::vector<std::byte> read(static_cast<std::size_t>(rows.num_tokens * rows.bytes_per_token()));
    REQUIRE(::pread(rows.file.descriptor, read.data(), read.size(), static_cast<off_t>(rows.file.offset)) ==
            static_cast<ssize_t>(read.size()));
    CHECK(std::equal(read.begin(), read.end(), rows.data));
  }
}

TEST_CASE("a live layer has sequences that share chunks, can be read again, and stays when the next is opened") {
  Fixture f;
  const auto first = f.live->open(0);
  const auto once = read_keys(*first);
  CHECK(once.second == Lengths{{60}, {60}, {60}, {60, 10}});
  const auto second = f.live->open(2);
  first->rewind();
  CHECK((read_keys(*first) == once));
  CHECK(!(read_keys(*second) == once));
}

}  // namespace oscar
