// SPDX-License-Identifier: MIT
#include "dump/dump_data.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"

namespace oscar {

std::string fingerprint(const std::vector<DumpChunk>& chunks, int layer_id) {
  Sha256 hash;
  const auto add = [&](const std::string& text) { hash.update(std::as_bytes(std::span(text.data(), text.size()))); };
  for (const DumpChunk& chunk : chunks) {
    add("layer " + std::to_string(layer_id) + " chunk " + std::to_string(chunk.number));
    for (const std::int64_t length : chunk.seq_lens) add(" " + std::to_string(length));
    for (const ChunkTensor* tensor : {&chunk.q, &chunk.k, &chunk.v}) {
      const std::uint64_t size = regular_file_size(tensor->file);
      std::vector<std::byte> tail(std::min<std::uint64_t>(size, 4096));
      read_at(tensor->file, size - tail.size(), tail);
      add(std::to_string(size));
      hash.update(tail);
    }
  }
  return hash.hex();
}

std::vector<std::string> blocks_of(std::vector<std::string> whole, const std::vector<DumpChunk>& chunks) {
  constexpr std::size_t kDigits = CalibrationData::kBlockDigits;
  std::size_t sequence = 0;
  for (const DumpChunk& chunk : chunks) {
    for (const std::int64_t length : chunk.seq_lens) {
      if (sequence == whole.size()) return {};  // not what the manifest describes
      std::string& blocks = whole[sequence++];
      const std::size_t full = static_cast<std::size_t>(length) / CalibrationData::kBlockTokens;
      if (blocks.size() > kDigits) blocks.resize(std::min(blocks.size(), full * kDigits));
    }
  }
  whole.resize(sequence);
  return whole;
}

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

}  // namespace oscar
