// SPDX-License-Identifier: MIT
#include "verify/compare_states.hpp"

#include <algorithm>
#include <atomic>

#include "base/threads.hpp"

namespace oscar::verify {
namespace {

/// Logits of one run that a thread holds at a time.
constexpr std::size_t kBlockBytes = 32U << 20;

/// Neighbours among whose positions one part in kParts is compared where not all are.
constexpr std::size_t kNeighbours = 64, kParts = 4;

std::size_t largest_block(std::size_t vocab) { return std::max<std::size_t>(kBlockBytes / (vocab * sizeof(float)), 1); }

/// Neighbouring positions of one text. place: of the first among those that are compared.
struct Block {
  std::size_t text, first, count, place;
};

/// Blocks of one text, in order: the last position is always in one.
std::vector<Block> blocks_of(std::size_t text, std::size_t positions, std::size_t vocab, Positions wanted) {
  const bool all = wanted == Positions::kAll;
  const std::size_t largest = all ? largest_block(vocab) : std::min(largest_block(vocab), kNeighbours);
  const std::size_t skipped = all ? 0 : (kParts - 1) * kNeighbours;
  std::vector<Block> blocks;
  for (std::size_t end = positions; end > 0; end -= std::min(end, skipped)) {
    // Of large vocabularies the neighbours are several blocks.
    for (std::size_t left = all ? end : std::min(end, kNeighbours); left > 0;) {
      const std::size_t count = std::min(left, largest);
      blocks.push_back({text, end - count, count, 0});
      end -= count, left -= count;
    }
  }
  std::ranges::reverse(blocks);
  std::size_t place = 0;
  for (Block& block : blocks) block.place = place, place += block.count;
  return blocks;
}

/// Logits of a block, in memory that a GPU's copies reach at full speed.
class BlockLogits {
 public:
  BlockLogits(const ModelRunner& runner, std::size_t vocab)
      : vocab_(vocab), memory_(runner.host_memory(largest_block(vocab) * vocab * sizeof(float))) {}

  void read(const FinalStates& states, const Block& block) {
    states.logits(block.text, static_cast<std::int64_t>(block.first), {data(), block.count * vocab_});
  }
  [[nodiscard]] std::span<const float> row(std::size_t i) const { return {data() + i * vocab_, vocab_}; }

 private:
  [[nodiscard]] float* data() const { return reinterpret_cast<float*>(memory_.get()); }

  std::size_t vocab_;
  std::shared_ptr<std::byte> memory_;
};

/// Fills the figures of a block of positions; rows are shared among threads unless this is a thread of many.
void compare_block(const Block& block, const TokenSequence& text, const BlockLogits& exact, const BlockLogits& other,
                   TextFigures& figures) {
  const std::size_t parts = std::min(block.count, static_cast<std::size_t>(num_threads()));
  parallel_for(parts, [&](std::size_t part) {
    TokenDistribution p, q;
    for (std::size_t i = part * block.count / parts; i < (part + 1) * block.count / parts; ++i) {
      p.read(exact.row(i));
      q.read(other.row(i));
      figures[block.place + i] = compare(p, q, static_cast<std::size_t>(text[block.first + i + 1]));
    }
  });
}

}  // namespace

std::vector<std::vector<TextFigures>> compare_states(const ModelRunner& runner, std::span<const TokenSequence> texts,
                                                     const FinalStates& exact, std::span<const FinalStates* const> runs,
                                                     Positions positions) {
  const auto vocab = static_cast<std::size_t>(runner.config().vocab_size);
  std::vector<Block> blocks;
  std::vector<std::vector<TextFigures>> figures(runs.size(), std::vector<TextFigures>(texts.size()));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::vector<Block> own = blocks_of(i, texts[i].size() - 1, vocab, positions);
    for (std::vector<TextFigures>& run : figures) run[i].resize(own.back().place + own.back().count);
    blocks.insert(blocks.end(), own.begin(), own.end());
  }
  const int calls = exact.concurrent_calls() > 0 ? exact.concurrent_calls() : num_threads();
  std::atomic<std::size_t> next = 0;
  parallel_for(std::min(blocks.size(), static_cast<std::size_t>(calls)), [&](std::size_t) {
    BlockLogits exact_logits(runner, vocab), logits(runner, vocab);
    for (std::size_t b = next++; b < blocks.size(); b = next++) {
      throw_if_interrupted();
      const Block& block = blocks[b];
      exact_logits.read(exact, block);
      for (std::size_t run = 0; run < runs.size(); ++run) {
        logits.read(*runs[run], block);
        compare_block(block, texts[block.text], exact_logits, logits, figures[run][block.text]);
      }
    }
  });
  return figures;
}

}  // namespace oscar::verify
