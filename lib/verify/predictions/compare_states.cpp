// SPDX-License-Identifier: MIT
#include "verify/predictions/compare_states.hpp"

#include <algorithm>
#include <atomic>

#include "base/threads.hpp"

namespace oscar::verify {
namespace {

/// Logits of one run that a thread holds at a time.
constexpr std::size_t kBlockBytes = 32U << 20;

/// Neighbouring positions of one text.
struct Block {
  std::size_t text, first, count;
};

std::vector<Block> blocks_of(std::span<const TokenSequence> texts, std::size_t vocab) {
  const std::size_t largest = std::max<std::size_t>(kBlockBytes / (vocab * sizeof(float)), 1);
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::size_t positions = texts[i].size() - 1;
    for (std::size_t first = 0; first < positions; first += largest) {
      blocks.push_back({i, first, std::min(largest, positions - first)});
    }
  }
  return blocks;
}

/// Logits of a block, in memory that a GPU's copies reach at full speed.
class BlockLogits {
 public:
  BlockLogits(const ModelRunner& runner, std::size_t vocab)
      : vocab_(vocab),
        memory_(runner.host_memory(std::max(kBlockBytes / (vocab * sizeof(float)), std::size_t{1}) * vocab *
                                   sizeof(float))) {}

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
      const std::size_t position = block.first + i;
      figures[position] = compare(p, q, static_cast<std::size_t>(text[position + 1]));
    }
  });
}

}  // namespace

std::vector<std::vector<TextFigures>> compare_states(const ModelRunner& runner, std::span<const TokenSequence> texts,
                                                     const FinalStates& exact,
                                                     std::span<const FinalStates* const> runs) {
  const auto vocab = static_cast<std::size_t>(runner.config().vocab_size);
  const std::vector<Block> blocks = blocks_of(texts, vocab);
  std::vector<std::vector<TextFigures>> figures(runs.size(), std::vector<TextFigures>(texts.size()));
  for (std::vector<TextFigures>& run : figures) {
    for (std::size_t i = 0; i < texts.size(); ++i) run[i].resize(texts[i].size() - 1);
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
