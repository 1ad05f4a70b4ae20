// SPDX-License-Identifier: MIT
#include "model/tokenizer/bpe.hpp"

#include <queue>

#include "base/errors.hpp"

namespace oscar {
namespace {

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

constexpr std::int32_t kGone = -1;  // a symbol that was merged into its left neighbour

struct Symbol {
  std::int32_t id = 0;
  int previous = -1, next = -1;
};

struct Candidate {
  std::int32_t rank = 0;
  int left = 0;
  std::int32_t left_id = 0, right_id = 0, result = 0;
  bool operator<(const Candidate& other) const {  // the top of the queue: lowest rank, then leftmost
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

}  // namespace

BytePairEncoder::BytePairEncoder(std::unordered_map<std::string, std::int32_t> vocabulary,
                                 const std::vector<std::pair<std::string, std::string>>& merges, bool ignore_merges,
                                 const std::string& where)
    : vocabulary_(std::move(vocabulary)), ignore_merges_(ignore_merges) {
  const auto id_of = [&](const std::string& token, const std::string& what) {
    const auto found = vocabulary_.find(token);
    if (found == vocabulary_.end())
      throw DataError(what + " is not in the vocabulary", where, "fetch the tokenizer again");
    return found->second;
  };
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[static_cast<std::size_t>(byte)] =
        id_of(std::string(1, static_cast<char>(byte)), "the byte " + std::to_string(byte));
  }
  merges_.reserve(merges.size());
  std::int32_t rank = 0;
  for (const auto& [left, right] : merges) {
    const std::string what = "a part or the result of merge " + std::to_string(rank);
    merges_.try_emplace(key_of(id_of(left, what), id_of(right, what)), Merge{rank, id_of(left + right, what)});
    ++rank;
  }
}

const BytePairEncoder::Merge* BytePairEncoder::find_merge(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairEncoder::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto whole = vocabulary_.find(std::string(word)); whole != vocabulary_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  const int count = static_cast<int>(word.size());
  std::vector<Symbol> symbols(word.size());
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int left) {
    const int right = left < 0 ? -1 : symbols[static_cast<std::size_t>(left)].next;
    if (right < 0) return;
    const std::int32_t a = symbols[static_cast<std::size_t>(left)].id, b = symbols[static_cast<std::size_t>(right)].id;
    if (const Merge* merge = find_merge(a, b)) queue.push({merge->rank, left, a, b, merge->result});
  };
  for (int i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<std::size_t>(i)]);
    symbols[static_cast<std::size_t>(i)] = {byte_ids_[byte], i - 1, i + 1 < count ? i + 1 : -1};
  }
  for (int i = 0; i + 1 < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<std::size_t>(best.left)];
    if (left.id != best.left_id || left.next < 0) continue;  // overtaken by a better merge
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    if (right.id != best.right_id) continue;
    left.id = best.result;
    left.next = right.next;
    right.id = kGone;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (int i = count > 0 ? 0 : -1; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    ids.push_back(symbols[static_cast<std::size_t>(i)].id);
  }
}

}  // namespace oscar
