// SPDX-License-Identifier: MIT
#include "model/weights/checkpoint.hpp"

#include <algorithm>
#include <numeric>

#include "base/sha256.hpp"
#include "base/status.hpp"
#include "model/gguf/gguf_model.hpp"

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

void Checkpoint::read_rows(const TensorRef& matrix, std::span<const std::int32_t> rows, std::size_t begin,
                           std::size_t count, std::byte* to) const {
  const StopScope scope(stop_);
  if (remote_) {
    const auto kept = [&]() -> RemoteRows& {
      const std::lock_guard lock(remote_mutex_);
      return remote_rows_[matrix.data.data()];
    };
    return kept().read(matrix, rows, begin, count, to,
                       [this](std::span<const RemoteRows::Part> parts) { read_at_server(parts); });
  }
  const std::size_t row_bytes = matrix.data.size() / static_cast<std::size_t>(matrix.shape[0]);
  for (const std::int32_t row : rows) {
    read_here(matrix.data.subspan(static_cast<std::size_t>(row) * row_bytes + begin, count), to);
    to += count;
  }
}

Tensor Checkpoint::load(const std::string& name) const {
  const TensorRef& shown = at(name);
  Tensor tensor(shown.dtype, shown.shape);
  read(shown.data, tensor.data.data());
  return tensor;
}

std::string weights_sha256(const ModelConfig& config, const Checkpoint& weights) {
  const float more = config.norm_plus_one ? 1 : 0;  // which GGUF has added already, and rounded to float32
  const std::string& part = config.blocks.front().mixer_norm;
  const std::string name = part.empty() ? kFinalNormName : layer_weight_name(0, part + ".weight");
  if (!weights.contains(name)) return "";
  std::vector<std::uint16_t> norm;
  for (const double value : weights.load(name).to_doubles()) {
    norm.push_back(bf16_from_float(static_cast<float>(value) + more));
  }
  Sha256 hash;
  hash.update(std::as_bytes(std::span(norm)));
  return hash.hex();
}

std::unique_ptr<Checkpoint> open_checkpoint(const std::filesystem::path& model) {
  return is_gguf(model) ? open_gguf(model) : open_safetensors(model);
}

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
