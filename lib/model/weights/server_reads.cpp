// SPDX-License-Identifier: MIT
#include "model/weights/server_reads.hpp"

#include <algorithm>
#include <numeric>

namespace oscar {
namespace {

/// A gap between rows that is rather read than asked around: about what comes during the time of a request.
constexpr std::size_t kGapBytes = std::size_t{64} << 10;
constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // that are read together, gaps included

/// Rows [first, last], and those of them that are wanted.
struct Stretch {
  std::int32_t first, last;
  std::vector<std::int32_t> wanted;
  std::vector<std::byte> bytes;
};

/// The first of `rows` (ascending) as stretches of kMostBytes at most, one row at least; they are taken out of `rows`.
std::vector<Stretch> take_stretches(std::span<const std::int32_t>& rows, std::size_t row_bytes) {
  std::vector<Stretch> result;
  std::size_t total = 0;
  for (; !rows.empty(); rows = rows.subspan(1)) {
    const std::int32_t row = rows.front();
    const std::size_t gap = result.empty() ? 0 : static_cast<std::size_t>(row - result.back().last - 1) * row_bytes;
    const bool joins = !result.empty() && gap <= kGapBytes;
    total += row_bytes + (joins ? gap : 0);
    if (total > kMostBytes && !result.empty()) break;
    if (!joins) result.push_back({row, row, {}, {}});
    result.back().last = row;
    result.back().wanted.push_back(row);
  }
  return result;
}

}  // namespace

void RemoteRows::fetch(const TensorRef& matrix, std::vector<std::int32_t> rows, const Read& read) {
  const std::size_t row_bytes = matrix.data.size() / static_cast<std::size_t>(matrix.shape[0]);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  for (std::span<const std::int32_t> left = rows; !left.empty();) {
    std::vector<Stretch> stretches = take_stretches(left, row_bytes);
    std::vector<Part> parts;
    for (Stretch& stretch : stretches) {
      stretch.bytes.resize(static_cast<std::size_t>(stretch.last - stretch.first + 1) * row_bytes);
      const std::size_t begin = static_cast<std::size_t>(stretch.first) * row_bytes;
      parts.push_back({matrix.data.subspan(begin, stretch.bytes.size()), stretch.bytes});
    }
    read(parts);
    for (const Stretch& stretch : stretches) {
      for (const std::int32_t row : stretch.wanted) {
        const std::byte* begin = &stretch.bytes[static_cast<std::size_t>(row - stretch.first) * row_bytes];
        kept_[row].assign(begin, begin + row_bytes);
      }
    }
  }
}

void RemoteRows::read(const TensorRef& matrix, std::span<const std::int32_t> rows, std::size_t begin, std::size_t count,
                      std::byte* to, const Read& read) {
  const std::lock_guard lock(mutex_);  // who comes next finds most of its rows
  std::vector<std::int32_t> missing;
  if (matrix.data.size() <= kMostBytes && kept_.empty() && !rows.empty()) {
    missing.resize(static_cast<std::size_t>(matrix.shape[0]));  // small: all of it at once
    std::iota(missing.begin(), missing.end(), 0);
  }
  for (const std::int32_t row : rows) {
    if (!kept_.contains(row)) missing.push_back(row);
  }
  fetch(matrix, std::move(missing), read);
  for (const std::int32_t row : rows) {
    to = std::copy_n(&kept_.at(row)[begin], count, to);
  }
}

void KeptBytes::allow(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  allowed_ = bytes;
}

bool KeptBytes::copy(std::span<const std::byte> name, std::byte* to) const {
  std::unique_lock lock(mutex_);
  const auto found = kept_.find({name.data(), name.size()});
  if (found == kept_.end() || found->second == nullptr) return false;
  const auto own = found->second;
  lock.unlock();  // several readers copy at the same time
  std::copy(own->begin(), own->end(), to);
  return true;
}

void KeptBytes::add(std::span<const std::byte> name, const std::byte* bytes) {
  const Key key{name.data(), name.size()};
  {
    const std::lock_guard lock(mutex_);
    if (held_ + name.size() > allowed_ || !kept_.try_emplace(key).second) return;
    held_ += name.size();
  }
  auto own = std::make_shared<const std::vector<std::byte>>(bytes, bytes + name.size());
  const std::lock_guard lock(mutex_);
  kept_[key] = std::move(own);
}

}  // namespace oscar
