// SPDX-License-Identifier: MIT
#include "model/weights/checkpoint.hpp"

#include "base/sha256.hpp"
#include "base/status.hpp"
#include "model/gguf/gguf_model.hpp"
#include "model/weights/layout.hpp"

namespace oscar {

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

}  // namespace oscar
