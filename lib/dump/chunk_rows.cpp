// SPDX-License-Identifier: MIT
#include "dump/chunk_rows.hpp"

#include <array>
#include <numeric>

#include "dump/chunk_record.hpp"

namespace oscar {
namespace {

std::int64_t tokens_of(const DumpChunk& chunk) {
  return std::accumulate(chunk.seq_lens.begin(), chunk.seq_lens.end(), std::int64_t{0});
}

/// The first tokens of a tensor; no data yet.
HeadsView view_of(const TensorLocation& place, std::int64_t tokens) {
  return {nullptr, place.dtype, tokens, static_cast<int>(place.shape[1]), static_cast<int>(place.shape[2])};
}

std::uint64_t size_of(const HeadsView& view) {
  return static_cast<std::uint64_t>(view.bytes_per_token()) * static_cast<std::uint64_t>(view.num_tokens);
}

}  // namespace

QkvView ChunkRows::shapes_of(const DumpChunk& chunk) {
  const std::int64_t tokens = tokens_of(chunk);
  return {view_of(chunk.q.location, tokens), view_of(chunk.k.location, tokens), view_of(chunk.v.location, tokens)};
}

ChunkRows::Files ChunkRows::files_of(const DumpChunk& chunk) {
  return {open_place(chunk.q.file), open_place(chunk.k.file), open_place(chunk.v.file)};
}

std::uint64_t ChunkRows::bytes_of(const DumpChunk& chunk) {
  const QkvView view = shapes_of(chunk);
  return size_of(view.q) + size_of(view.k) + size_of(view.v);
}

ChunkRows::ChunkRows(const DumpChunk& chunk, const Files& files)
    : bytes_(std::make_unique_for_overwrite<std::byte[]>(bytes_of(chunk))), view_(shapes_of(chunk)) {
  std::array<FilePart, 3> parts{FilePart{files.q.get(), chunk.q.location.offset, {}},
                                FilePart{files.k.get(), chunk.k.location.offset, {}},
                                FilePart{files.v.get(), chunk.v.location.offset, {}}};
  std::byte* to = bytes_.get();
  std::size_t i = 0;
  for (HeadsView* view : {&view_.q, &view_.k, &view_.v}) {
    view->data = to;
    parts[i++].to = {to, size_of(*view)};
    to += size_of(*view);
  }
  remote_places().read(parts);
  i = 0;
  for (const ChunkTensor* const tensor : {&chunk.q, &chunk.k, &chunk.v}) {
    require_recorded(*tensor, *parts[i].file, parts[i].to);
    ++i;
  }
}

}  // namespace oscar
