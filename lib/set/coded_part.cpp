// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <cmath>

#include <Eigen/LU>

#include "base/errors.hpp"
#include "kernels/reference/coded_row.hpp"
#include "set/set.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

/// Four of each side, and the mean of keys; before RoPE the pairs of keys, too.
std::size_t tensors_of(const CodedLayer& layer) { return layer.key.rotary ? 10 : 9; }

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// One value of every channel of every head, (Hkv, d).
template <class T>
std::vector<T> joined(const CodedSide& side, std::vector<T> CodedFormat::*member) {
  std::vector<T> all;
  for (const CodedFormat& format : side.formats)
    all.insert(all.end(), (format.*member).begin(), (format.*member).end());
  return all;
}

/// A float32 tensor of numbers that are exact in float32.
Tensor float_tensor(std::vector<std::int64_t> shape, const std::vector<double>& values) {
  const std::vector<float> floats(values.begin(), values.end());
  return Tensor::from(std::move(shape), std::span<const float>(floats));
}

/// Visits the entries that block-diagonal matrices may have: f(place in (Hkv, d, 2), place in the stack).
template <class F>
void for_each_entry(int dim, std::span<const int> pairs, std::span<const int> channels, const F& f) {
  const auto width = static_cast<std::size_t>(dim);
  for (std::size_t at = 0; at < pairs.size(); ++at) {
    const std::size_t head = at / width, column = at % width;
    for (std::size_t i = 0; i < 2; ++i) {
      const auto row = static_cast<std::size_t>(channels[2 * static_cast<std::size_t>(pairs[at]) + i]);
      f(2 * at + i, (head * width + row) * width + column);
    }
  }
}

std::vector<double> of_pairs(const MatrixStack& stack, std::span<const int> pairs, std::span<const int> channels) {
  std::vector<double> entries(2 * pairs.size());
  for_each_entry(stack.dim, pairs, channels, [&](std::size_t to, std::size_t from) { entries[to] = stack.data[from]; });
  return entries;
}

void add_side(const std::string& prefix, const CodedSide& side, bool has_mean, NamedTensors& tensors) {
  const std::int64_t heads = side.transform.rotation.count, dim = side.transform.rotation.dim;
  const auto add = [&](const char* name, Tensor tensor) { tensors.emplace_back(prefix + name, std::move(tensor)); };
  if (side.rotary) {
    const std::vector<int> pairs = pairs_of(side.transform.rotation, *side.rotary);
    add("pair", Tensor::from({heads, dim}, std::span<const std::int32_t>(pairs)));
    add("write", float_tensor({heads, dim, 2}, of_pairs(side.transform.rotation, pairs, side.rotary->pairs)));
  } else {
    add("write", float_tensor({heads, dim, dim}, side.transform.rotation.data));
  }
  if (has_mean) {
    std::vector<double> mean = side.transform.mean;
    mean.resize(static_cast<std::size_t>(heads * dim));  // zeros, where keys are not centred
    add("mean", float_tensor({heads, dim}, mean));
  }
  const std::vector<int> levels = joined(side, &CodedFormat::levels);
  const std::vector<float> step = joined(side, &CodedFormat::step), sigma = joined(side, &CodedFormat::sigma);
  add("levels", Tensor::from({heads, dim}, std::span<const std::int32_t>(levels)));
  add("step", Tensor::from({heads, dim}, std::span<const float>(step)));
  add("sigma", Tensor::from({heads, dim}, std::span<const float>(sigma)));
}

/// Reads tensors of one side, each of the shape that it must have.
class SideReader {
 public:
  SideReader(const SafetensorsFile& file, std::string prefix, const std::string& where)
      : file_(file), prefix_(std::move(prefix)), where_(where) {}

  [[nodiscard]] CodedSide read(bool has_mean, std::optional<Rotary> rotary) {
    const TensorRef& write = file_.at(prefix_ + "write");
    const std::int64_t width = rotary ? 2 : write.shape.size() == 3 ? write.shape[1] : 0;
    if (write.shape.size() != 3 || write.shape[2] != width || write.shape[0] < 1) refuse("write", write.shape);
    heads_ = write.shape[0], dim_ = write.shape[1];
    CodedSide side;
    side.rotary = std::move(rotary);
    side.transform.rotation = side.rotary ? of_pairs("write", *side.rotary) : matrices("write");
    side.transform.read_rotation = read_side(side.transform.rotation);
    if (has_mean) side.transform.mean = floats("mean", {heads_, dim_});
    const bool zero = std::ranges::all_of(side.transform.mean, [](double x) { return x == 0; });
    if (zero && !side.rotary) side.transform.mean.clear();
    const std::vector<double> levels = values("levels", {heads_, dim_}, DType::kI32);
    const std::vector<double> step = floats("step", {heads_, dim_}), sigma = floats("sigma", {heads_, dim_});
    for (std::int64_t first = 0; first < heads_ * dim_; first += dim_) {
      const auto part = [&](const std::vector<double>& all) {
        return std::span(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(dim_));
      };
      CodedFormat format;
      for (const double x : part(levels)) format.levels.push_back(static_cast<int>(x));
      for (const double x : part(step)) format.step.push_back(static_cast<float>(x));
      for (const double x : part(sigma)) format.sigma.push_back(static_cast<float>(x));
      try {
        reference::require_valid(format);
      } catch (const std::logic_error&) {
        throw DataError(fmt::format("the format of KV head {} cannot be packed: levels are powers of two from 256 down "
                                    "to 1, equal in blocks of 8 channels, and steps and sigmas of stored ones positive",
                                    first / dim_),
                        where_ + ", " + prefix_ + "levels", "fit the set again");
      }
      side.formats.push_back(std::move(format));
    }
    return side;
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::vector<std::int64_t>& shape) const {
    throw DataError(
        "the tensor " + prefix_ + name + " has the shape " + shape_text(shape) + " or a type that does not fit", where_,
        "fit the set again");
  }
  [[nodiscard]] std::vector<double> values(const std::string& name, const std::vector<std::int64_t>& shape,
                                           DType dtype) const {
    const TensorRef& tensor = file_.at(prefix_ + name);
    if (tensor.shape != shape || tensor.dtype != dtype) refuse(name, tensor.shape);
    return file_.load(prefix_ + name).to_doubles();
  }
  [[nodiscard]] std::vector<double> floats(const std::string& name, const std::vector<std::int64_t>& shape) const {
    std::vector<double> all = values(name, shape, DType::kF32);
    if (std::ranges::all_of(all, [](double x) { return std::isfinite(x); })) return all;
    throw DataError("the tensor " + prefix_ + name + " has values that are not finite", where_, "fit the set again");
  }
  [[nodiscard]] MatrixStack matrices(const std::string& name) const {
    MatrixStack stack(static_cast<int>(heads_), static_cast<int>(dim_));
    stack.data = floats(name, {heads_, dim_, dim_});
    return stack;
  }

  [[nodiscard]] MatrixStack read_side(const MatrixStack& write) const {
    using Square = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    MatrixStack read(write.count, write.dim);
    for (int head = 0; head < write.count; ++head) {
      Eigen::Map<Square>(read[head].data(), write.dim, write.dim) =
          Eigen::Map<const Square>(write[head].data(), write.dim, write.dim).inverse().transpose();
    }
    for (double& entry : read.data) entry = static_cast<float>(entry);
    if (std::ranges::all_of(read.data, [](double x) { return std::isfinite(x); })) return read;
    throw DataError("the tensor " + prefix_ + "write has a matrix without an inverse", where_, "fit the set again");
  }

  /// The matrices whose entries are stored by pair.
  [[nodiscard]] MatrixStack of_pairs(const std::string& name, const Rotary& rotary) const {
    std::vector<int> pairs, times(static_cast<std::size_t>(heads_ * dim_ / 2));
    bool fits = rotary.dim() == dim_;
    for (const double p : values("pair", {heads_, dim_}, DType::kI32)) {
      fits = fits && p >= 0 && p < static_cast<double>(dim_) / 2;
      if (fits)
        ++times[pairs.size() / static_cast<std::size_t>(dim_) * times.size() / static_cast<std::size_t>(heads_) +
                static_cast<std::size_t>(p)];
      pairs.push_back(static_cast<int>(p));
    }
    if (!fits || std::ranges::any_of(times, [](int n) { return n != 2; })) {
      throw DataError("the tensor " + prefix_ + "pair does not give every pair of channels two coordinates", where_,
                      "fit the set again");
    }
    const std::vector<double> entries = floats(name, {heads_, dim_, 2});
    for (std::size_t at = 0; at < entries.size(); at += 2) {
      if (entries[at] != 0 || entries[at + 1] != 0) continue;
      throw DataError("the tensor " + prefix_ + name + " has a coordinate of no channel", where_, "fit the set again");
    }
    MatrixStack stack(static_cast<int>(heads_), static_cast<int>(dim_));
    for_each_entry(stack.dim, pairs, rotary.pairs,
                   [&](std::size_t from, std::size_t to) { stack.data[to] = entries[from]; });
    return stack;
  }

  const SafetensorsFile& file_;
  std::string prefix_;
  const std::string& where_;
  std::int64_t heads_ = 0, dim_ = 0;
};

std::int64_t channels_of(const CodedSide& side) {
  return std::int64_t{side.transform.rotation.count} * side.transform.rotation.dim;
}

std::string prefix_of(int layer_id, const char* side) { return fmt::format("layers.{}.{}.", layer_id, side); }

}  // namespace

std::vector<int> pairs_of(const MatrixStack& write, const Rotary& rotary) {
  const auto dim = static_cast<std::size_t>(write.dim);
  std::vector<int> pairs;
  for (int head = 0; head < write.count; ++head) {
    for (std::size_t c = 0; c < dim; ++c) {
      std::size_t p = 0;
      const auto entry = [&](std::size_t i) {
        return write[head][static_cast<std::size_t>(rotary.pairs[2 * p + i]) * dim + c];
      };
      while (p + 1 < dim / 2 && entry(0) == 0 && entry(1) == 0) ++p;
      pairs.push_back(static_cast<int>(p));
    }
  }
  return pairs;
}

double bits_of(const CodedSide& side) {
  double bytes = 0;
  for (const CodedFormat& format : side.formats) bytes += static_cast<double>(reference::coded_row_bytes(format));
  return 8 * bytes / static_cast<double>(channels_of(side));
}

double bits_of(const CodedPart& part) {
  double bits = 0, channels = 0;
  for (const CodedLayer& layer : part.layers) {
    for (const CodedSide* side : {&layer.key, &layer.value}) {
      const auto width = static_cast<double>(channels_of(*side));
      bits += width * bits_of(*side);
      channels += width;
    }
  }
  return channels > 0 ? bits / channels : 0;
}

void write_coded_file(const std::filesystem::path& path, const CodedPart& part) {
  NamedTensors tensors;
  for (const CodedLayer& layer : part.layers) {
    add_side(prefix_of(layer.layer_id, "key"), layer.key, true, tensors);
    add_side(prefix_of(layer.layer_id, "value"), layer.value, false, tensors);
  }
  write_safetensors(path, tensors, {{"schema", "oscar.set.v1"}});
}

void fill_from_coded_file(const std::filesystem::path& path, CodedPart& part) {
  const std::string where = path.string();
  const SafetensorsFile file(path);
  for (CodedLayer& layer : part.layers) {
    layer.key = SideReader(file, prefix_of(layer.layer_id, "key"), where).read(true, layer.key.rotary);
    layer.value = SideReader(file, prefix_of(layer.layer_id, "value"), where).read(false, {});
  }
  std::size_t known = 0;
  for (const CodedLayer& layer : part.layers) known += tensors_of(layer);
  if (file.tensors().size() == known) return;
  throw DataError("the file has tensors beside those of the layers in the manifest", where, "fit the set again");
}

}  // namespace oscar
