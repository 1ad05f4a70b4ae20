// SPDX-License-Identifier: MIT
// A chunk of a dump at a server, read into memory; remote_chunks.hpp decides which ones are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/places.hpp"
#include "dump/dump_index.hpp"
#include "kernels/types.hpp"

namespace oscar {

/// The rows of a chunk that its sequences cover.
class ChunkRows {
 public:
  struct Files {
    std::unique_ptr<PlacedFile> q, k, v;
  };
  [[nodiscard]] static Files files_of(const DumpChunk& chunk);
  [[nodiscard]] static std::uint64_t bytes_of(const DumpChunk& chunk);

  /// Reads all three files at the same time. Throws what RemotePlaces::read() throws.
  ChunkRows(const DumpChunk& chunk, const Files& files);
  [[nodiscard]] const QkvView& view() const noexcept { return view_; }
  /// Returns views of the chunk's shapes that have no data.
  [[nodiscard]] static QkvView shapes_of(const DumpChunk& chunk);

 private:
  std::unique_ptr<std::byte[]> bytes_;
  QkvView view_;
};

}  // namespace oscar
