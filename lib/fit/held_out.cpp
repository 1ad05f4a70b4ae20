// SPDX-License-Identifier: MIT
#include "fit/held_out.hpp"

#include <algorithm>

namespace oscar {
namespace {

/// Views of skipped chunks have no data.
QkvView part_of(const QkvView& view, SequenceRange range) {
  if (view.k.data != nullptr) return view.tokens(range);
  QkvView part = view;
  for (HeadsView* side : {&part.q, &part.k, &part.v}) side->num_tokens = range.size();
  return part;
}

}  // namespace

HeldOutSplit::HeldOutSplit(std::int64_t num_sequences)
    : stride_(static_cast<std::size_t>(std::clamp<std::int64_t>(num_sequences, 1, 3))) {
  if (num_sequences >= 2) return;
  throw TooLittleData("the held-out set is empty: there is only one sequence to calibrate on", "--recipe auto",
                      "give at least two sequences (a smaller --seq-len cuts a long text), or choose a recipe");
}

PartStream::PartStream(LayerStream& whole, HeldOutSplit split, bool held_out)
    : whole_(whole), split_(split), held_out_(held_out) {
  rewind();
}

void PartStream::rewind() {
  whole_.rewind();
  current_ = {};
  chunks_ = next_in_chunk_ = sequence_ = 0;
}

bool PartStream::next(QkvChunk& chunk) {
  chunk = {};  // what it held may be needed to make room
  if (!skip(chunk)) return false;
  if (current_.view.k.data != nullptr) return true;
  read_current();
  const SequenceRange range = current_.sequences[next_in_chunk_ - 1];
  chunk = {current_.view.tokens(range), current_.owner, {{0, range.size()}}, current_.where};
  return true;
}

/// The current chunk with its rows, after it was skipped.
void PartStream::read_current() {
  whole_.rewind();
  for (std::size_t i = 1; i < chunks_; ++i) (void)whole_.skip(current_);
  current_ = {};
  (void)whole_.next(current_);
}

bool PartStream::skip(QkvChunk& chunk) {
  while (true) {
    if (next_in_chunk_ == current_.sequences.size()) {
      next_in_chunk_ = 0;
      current_ = {};  // or the last chunk would come again after the end
      if (!whole_.skip(current_)) return false;
      ++chunks_;
      continue;
    }
    const SequenceRange range = current_.sequences[next_in_chunk_++];
    if (split_.held_out(sequence_++) != held_out_) continue;
    chunk = {part_of(current_.view, range), current_.owner, {{0, range.size()}}, current_.where};
    return true;
  }
}

}  // namespace oscar
