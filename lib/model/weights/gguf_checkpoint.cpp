// SPDX-License-Identifier: MIT
// The weights of a model in GGUF by the names, in the order of rows and in the scale of the checkpoint that it was made
// from. Quantised tensors are shown as float32 and become that as they are read (tensor/ggml_blocks.hpp), so that what
// the file takes on disk is all that stays there.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>

#include "base/errors.hpp"
#include "base/status.hpp"
#include "model/gguf/gguf_model.hpp"
#include "model/weights/checkpoint.hpp"
#include "tensor/ggml_blocks.hpp"

namespace oscar {
namespace {

constexpr std::uint64_t kDecodedBytes = std::uint64_t{4} << 20;  // of what is decoded at a time
constexpr std::uint32_t kF32 = 0, kF16 = 1, kBF16 = 30;          // ggml's numbers

bool stays_as_stored(std::uint32_t type) { return type == kF32 || type == kF16 || type == kBF16; }

DType shown_type(std::uint32_t type, bool plus_one) {
  if (plus_one || !stays_as_stored(type)) return DType::kF32;
  return type == kF32 ? DType::kF32 : type == kF16 ? DType::kF16 : DType::kBF16;
}

/// Tensors that the configuration tells, or that sets are published with.
bool is_no_weight(const std::string& name) { return name.starts_with("rope_f") || name.ends_with("_rot.weight"); }

/// Where the row stands in the file that a checkpoint has as number `row`: there the halves of a head's rows alternate.
std::uint64_t stored_row(std::uint64_t row, std::uint64_t head_rows) {
  const std::uint64_t head = row / head_rows, inside = row % head_rows, half = head_rows / 2;
  return head * head_rows + inside % half * 2 + inside / half;
}

/// Values as they are shown, from their blocks.
std::vector<std::byte> decoded(std::uint32_t type, bool plus_one, std::vector<std::byte> stored, std::uint64_t values) {
  if (stays_as_stored(type) && !plus_one) return stored;
  std::vector<std::byte> bytes(values * sizeof(float));
  const std::span<float> floats(reinterpret_cast<float*>(bytes.data()), values);
  dequantize(type, stored, floats);
  for (float& value : floats) value -= plus_one ? 1.0F : 0.0F;
  return bytes;
}

class GgufCheckpoint : public Checkpoint {
 public:
  /// Throws DataError: what GgufModel throws, a tensor of a type or a name that is not supported.
  explicit GgufCheckpoint(const std::filesystem::path& path) : Checkpoint(path), model_(path) {
    for (const auto& [name, place] : model_.tensors()) {
      const std::optional<GgufWeightName> known = gguf_weight_name(model_, name);
      if (known) {
        if (weights_.emplace(known->name, weight_of(place, name, *known)).second) continue;
        throw DataError("the GGUF file has two tensors for " + known->name + ", one of which is " + name,
                        model_.where(), "fetch the file again");
      } else if (!is_no_weight(name)) {
        throw DataError("the GGUF file has a tensor " + name + ", which models of the architecture \"" +
                            model_.architecture() + "\" do not have",
                        model_.where(), "use the Hugging Face checkpoint that the file was made from");
      }
    }
    reserve_addresses();
  }

  ~GgufCheckpoint() override {
    if (addresses_ != nullptr) ::munmap(addresses_, reserved_);
  }

  GgufCheckpoint(const GgufCheckpoint&) = delete;
  GgufCheckpoint& operator=(const GgufCheckpoint&) = delete;

  [[nodiscard]] const TensorRef& at(const std::string& name) const override {
    const auto found = weights_.find(name);
    if (found != weights_.end()) return found->second.shown;
    throw DataError("the GGUF file has no weight " + name, model_.where(),
                    "fetch the file again, with all its parts, or use the Hugging Face checkpoint");
  }

  [[nodiscard]] bool contains(const std::string& name) const override { return weights_.contains(name); }
  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, weight] : weights_) names.push_back(name);
    return names;
  }

  void read(std::span<const std::byte> bytes, std::byte* to) const override {
    const StopScope scope(stop_);
    for (std::uint64_t begin = 0; begin < bytes.size(); begin += kDecodedBytes) {
      read_here(bytes.subspan(begin, std::min(kDecodedBytes, bytes.size() - begin)), to + begin);
    }
  }

  [[nodiscard]] std::map<std::string, const PlacedFile*> files() const override {
    std::map<std::string, const PlacedFile*> files;
    for (const auto& [name, file] : model_.parts()) files[name] = &file.file();
    return files;
  }

 protected:
  void read_here(std::span<const std::byte> bytes, std::byte* to) const override {
    const Part part = part_of(bytes, to);
    read(std::span(&part, 1));
  }

  void read_at_server(std::span<const RemoteRows::Part> wanted) const override {
    std::vector<Part> parts;
    for (const auto& [from, place] : wanted) parts.push_back(part_of(from, place.data()));
    read(parts);
  }

 private:
  struct Weight {
    TensorRef shown;  // its bytes are names only
    const GgufFile* file = nullptr;
    const GgufTensor* tensor = nullptr;
    std::int64_t head_rows = 0;  // rows of a head, if each head's rows are turned; else 0
    bool plus_one = false;
  };
  /// Bytes of a weight, and those of the file that hold them.
  struct Part {
    const Weight* weight = nullptr;
    std::uint64_t begin = 0, end = 0;     // of the shown bytes
    std::uint64_t first = 0, values = 0;  // what is decoded for them
    std::span<const std::byte> stored;    // that, in the file
    std::byte* to = nullptr;
  };

  [[nodiscard]] Weight weight_of(const GgufModel::Place& place, const std::string& name,
                                 const GgufWeightName& known) const {
    const GgufTensor& tensor = *place.tensor;
    if (!can_dequantize(tensor.type)) {
      const GgmlType* type = find_ggml_type(tensor.type);
      throw DataError(
          "tensor " + name + " is of ggml's type " +
              (type == nullptr ? std::to_string(tensor.type) : std::string(type->name)) + ", which is not supported",
          model_.where(), "use a file in F32, F16, BF16, Q8_0, Q4_0 to Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS or MXFP4");
    }
    Weight weight{{shown_type(tensor.type, known.plus_one), {tensor.dims.rbegin(), tensor.dims.rend()}, {}},
                  place.file,
                  &tensor,
                  0,
                  known.plus_one};
    std::vector<std::int64_t>& shape = weight.shown.shape;
    if (shape.empty()) shape = {1};
    if (known.one_row && shape.size() == 1) shape.insert(shape.begin(), 1);
    if (!known.turned) return weight;
    const bool keys = name.find("attn_k") != std::string::npos;
    const Json heads =
        model_.value(keys && !model_.value("attention.head_count_kv").is_null() ? "attention.head_count_kv"
                                                                                : "attention.head_count");
    const std::int64_t count = heads.is_number_integer() ? heads.get<std::int64_t>() : 0;
    if (count <= 0 || count > shape[0] || shape[0] % (2 * count) != 0) {
      throw DataError("tensor " + name + " does not have the rows of " + gguf_text(heads) + " heads", model_.where(),
                      "fetch the file again");
    }
    weight.head_rows = shape[0] / count;
    return weight;
  }

  void reserve_addresses() {
    constexpr std::uint64_t kAlignment = 64;
    const auto bytes_of = [](const Weight& weight) {
      std::uint64_t bytes = size_of(weight.shown.dtype);
      for (const std::int64_t dim : weight.shown.shape) bytes *= static_cast<std::uint64_t>(dim);
      return bytes;
    };
    reserved_ = kAlignment;
    for (const auto& [name, weight] : weights_) reserved_ += (bytes_of(weight) / kAlignment + 1) * kAlignment;
    void* place = ::mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) {
      throw IoError(std::string("cannot reserve addresses: ") + std::strerror(errno), model_.where(),
                    "raise the limit of the address space (ulimit -v)");
    }
    addresses_ = static_cast<std::byte*>(place);
    std::byte* next = addresses_;
    for (auto& [name, weight] : weights_) {
      const std::uint64_t bytes = bytes_of(weight);
      weight.shown.data = {next, bytes};
      by_address_[next] = &weight;
      next += (bytes / kAlignment + 1) * kAlignment;
    }
  }

  [[nodiscard]] Part part_of(std::span<const std::byte> bytes, std::byte* to) const {
    const auto after = by_address_.upper_bound(bytes.data());
    OSCAR_CHECK(after != by_address_.begin());
    const Weight& weight = *std::prev(after)->second;
    Part part{.weight = &weight, .to = to};
    part.begin = static_cast<std::uint64_t>(bytes.data() - weight.shown.data.data());
    part.end = part.begin + bytes.size();
    OSCAR_CHECK(part.end <= weight.shown.data.size());
    const std::uint64_t size = size_of(weight.shown.dtype), all = weight.shown.data.size() / size;
    const GgmlType& type = *find_ggml_type(weight.tensor->type);
    // Whole blocks, and whole heads where rows are turned, which are whole blocks unless the file is odd: then all.
    std::uint64_t unit = type.values;
    if (weight.head_rows > 0) {
      const std::uint64_t head = all / static_cast<std::uint64_t>(weight.shown.shape[0] / weight.head_rows);
      unit = head % type.values == 0 ? head : all;
    }
    part.first = part.begin / size / unit * unit;
    part.values = std::min(all, ((part.end + size - 1) / size + unit - 1) / unit * unit) - part.first;
    part.stored =
        weight.tensor->data.subspan(part.first / type.values * type.bytes, part.values / type.values * type.bytes);
    return part;
  }

  void read(std::span<const Part> parts) const {
    std::vector<std::vector<std::byte>> stored(parts.size());
    std::vector<FilePart> missing;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      stored[i].resize(parts[i].stored.size());
      if (kept_.copy(parts[i].stored, stored[i].data())) continue;
      const GgufFile& file = *parts[i].weight->file;
      missing.push_back({&file.file(), file.offset_of(parts[i].stored), stored[i]});
      bytes_read_ += stored[i].size();
    }
    if (remote_) {
      if (!missing.empty()) remote_places().read(missing);
    } else {
      for (const FilePart& each : missing) each.file->read(each.offset, each.to);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      const Weight& weight = *part.weight;
      kept_.add(part.stored, stored[i].data());
      const std::vector<std::byte> values =
          decoded(weight.tensor->type, weight.plus_one, std::move(stored[i]), part.values);
      const std::uint64_t first = part.first * size_of(weight.shown.dtype);  // of the decoded bytes
      if (weight.head_rows == 0) {
        std::copy_n(&values[part.begin - first], part.end - part.begin, part.to);
        continue;
      }
      const std::uint64_t row_bytes = weight.shown.data.size() / static_cast<std::uint64_t>(weight.shown.shape[0]);
      for (std::uint64_t at = part.begin; at < part.end;) {
        const std::uint64_t row = at / row_bytes, inside = at % row_bytes;
        const std::uint64_t count = std::min(row_bytes - inside, part.end - at);
        const std::uint64_t from = stored_row(row, static_cast<std::uint64_t>(weight.head_rows)) * row_bytes + inside;
        std::copy_n(&values[from - first], count, part.to + (at - part.begin));
        at += count;
      }
    }
  }

  GgufModel model_;
  std::map<std::string, Weight> weights_;
  std::map<const std::byte*, const Weight*> by_address_;  // by where the shown bytes begin
  std::byte* addresses_ = nullptr;                        // reserved, not there
  std::uint64_t reserved_ = 0;
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf(const std::filesystem::path& path) {
  return std::make_unique<GgufCheckpoint>(path);
}

}  // namespace oscar
