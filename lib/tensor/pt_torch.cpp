// SPDX-License-Identifier: MIT
// The plug-in behind pt.hpp. libtorch's unpickler builds values and runs nothing; whatever it does not know by itself
// reaches type_resolver below, which refuses it by name. Payloads are mapped, never copied twice.
#include <ATen/ops/from_blob.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/csrc/jit/serialization/unpickler.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "tensor/pt_plugin.hpp"
#include "tensor/pt_scan.hpp"

namespace oscar {
namespace {

constexpr char kRemedy[] = "fetch or write the file again; only zip archives made by torch.save can be read";

constexpr std::array<std::pair<DType, c10::ScalarType>, 10> kScalarTypes{{{DType::kF64, at::kDouble},
                                                                          {DType::kF32, at::kFloat},
                                                                          {DType::kF16, at::kHalf},
                                                                          {DType::kBF16, at::kBFloat16},
                                                                          {DType::kI64, at::kLong},
                                                                          {DType::kI32, at::kInt},
                                                                          {DType::kI16, at::kShort},
                                                                          {DType::kI8, at::kChar},
                                                                          {DType::kU8, at::kByte},
                                                                          {DType::kBool, at::kBool}}};

c10::ScalarType scalar_type(DType dtype) { return kScalarTypes[static_cast<std::size_t>(dtype)].second; }

/// An archive whose tensors point into the mapped file.
class Archive {
 public:
  explicit Archive(const std::filesystem::path& path) : path_(path.string()), file_(path) {
    try {
      reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(path_);
      // torch.save does not compress: a pickle that would grow beyond its archive is there to fill the memory.
      if (reader_->getRecordSize("data.pkl") > file_.bytes().size()) {
        throw DataError("the pickle is compressed, to more than the whole archive", path_, kRemedy);
      }
      const auto [pickle, size] = reader_->getRecord("data.pkl");
      check_pickle_lengths({static_cast<const char*>(pickle.get()), size}, path_);
      value_ = unpickle(static_cast<const char*>(pickle.get()), size);
    } catch (const c10::Error& error) {
      throw DataError("cannot read the archive: " + first_line(error.what_without_backtrace()), path_, kRemedy);
    }
  }

  [[nodiscard]] const c10::IValue& value() const { return value_; }

  /// Throws unless every element of `tensor` lies inside its record.
  const at::Tensor& checked(const at::Tensor& tensor) const {
    const c10::Storage& storage = tensor.storage();
    const auto record = record_sizes_.find(storage.data());
    std::int64_t last = tensor.storage_offset();
    bool inside = last >= 0;
    for (std::int64_t i = 0; i < tensor.dim(); ++i) {
      inside = inside && tensor.stride(i) >= 0 && tensor.size(i) >= 0;
      if (tensor.size(i) > 0) last += (tensor.size(i) - 1) * tensor.stride(i);
    }
    const std::size_t known = record != record_sizes_.end() ? record->second : 0;
    const std::size_t needed = tensor.numel() == 0 ? 0 : (static_cast<std::size_t>(last) + 1) * tensor.itemsize();
    if (!inside || needed > known) {
      throw DataError("a tensor is larger than its record in the archive", path_, kRemedy);
    }
    return tensor;
  }

  [[nodiscard]] std::uint64_t offset_of(const at::Tensor& tensor) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(tensor.const_data_ptr()) - file_.bytes().data());
  }

  [[nodiscard]] DType dtype_of(const at::Tensor& tensor) const {
    for (const auto& [dtype, scalar] : kScalarTypes) {
      if (scalar == tensor.scalar_type()) return dtype;
    }
    throw DataError(std::string("tensors of type ") + c10::toString(tensor.scalar_type()) + " are not supported", path_,
                    "convert the file to a plain floating-point or integer type");
  }

 private:
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  c10::IValue unpickle(const char* data, std::size_t size) {
    std::size_t position = 0;
    const auto read = [&](char* out, std::size_t count) {
      count = std::min(count, size - position);
      std::memcpy(out, data + position, count);
      position += count;
      return count;
    };
    const auto refuse = [this](const c10::QualifiedName& name) -> c10::StrongTypePtr {
      throw DataError("the pickle asks for the forbidden global \"" + name.qualifiedName() + "\"", path_,
                      "do not trust this file; rotation files need only dicts, numbers, strings and tensors");
    };
    const auto record = [this](const std::string& key) { return map_record("data/" + key); };
    torch::jit::Unpickler unpickler(read, refuse, nullptr, record, c10::Device(c10::kCPU));
    return unpickler.parse_ivalue();
  }

  at::DataPtr map_record(const std::string& name) {
    const std::size_t offset = reader_->getRecordOffset(name), size = reader_->getRecordSize(name);
    if (offset + size > file_.bytes().size()) throw DataError("the archive is truncated", path_, kRemedy);
    void* data = const_cast<std::byte*>(file_.bytes().data() + offset);
    record_sizes_[data] = size;
    return {data, c10::Device(c10::kCPU)};
  }

  std::string path_;
  MappedFile file_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  std::map<const void*, std::size_t> record_sizes_;
  c10::IValue value_;
};

class TorchPlugin : public PtPlugin {
 public:
  [[nodiscard]] PtValue read(const std::filesystem::path& path) const override {
    const Archive archive(path);
    return from_ivalue(archive, archive.value(), path.string());
  }

  [[nodiscard]] TensorLocation locate(const std::filesystem::path& path) const override {
    const Archive archive(path);
    if (!archive.value().isTensor()) {
      throw DataError("expected an archive with one bare tensor", path.string(), "check that this is a dump's chunk");
    }
    const at::Tensor& tensor = archive.checked(archive.value().toTensor());
    if (!tensor.is_contiguous()) {
      throw DataError("the tensor is a strided view", path.string(), "save it with .contiguous()");
    }
    return {archive.dtype_of(tensor), tensor.sizes().vec(), archive.offset_of(tensor)};
  }

  void write(const std::filesystem::path& path, const PtValue& value) const override {
    std::string pickle;
    torch::jit::Pickler pickler([&](const char* data, std::size_t size) { pickle.append(data, size); }, nullptr,
                                nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
    pickler.protocol();
    pickler.pushIValue(to_ivalue(value));
    pickler.stop();
    write_archive(path, pickle, pickler.tensorData());
  }

 private:
  static PtValue from_ivalue(const Archive& archive, const c10::IValue& value, const std::string& path) {
    if (value.isNone()) return {};
    if (value.isBool()) return {value.toBool()};
    if (value.isInt()) return {value.toInt()};
    if (value.isDouble()) return {value.toDouble()};
    if (value.isString()) return {value.toStringRef()};
    if (value.isTensor()) return {from_tensor(archive, value.toTensor())};
    if (value.isTuple() || value.isList()) {
      PtList list;
      if (value.isTuple()) {
        for (const c10::IValue& item : value.toTupleRef().elements()) list.push_back(from_ivalue(archive, item, path));
      } else {
        for (const c10::IValue& item : value.toListRef()) list.push_back(from_ivalue(archive, item, path));
      }
      return {std::move(list)};
    }
    if (value.isGenericDict()) {
      PtDict dict;
      for (const auto& entry : value.toGenericDict()) {
        dict.push_back({from_ivalue(archive, entry.key(), path), from_ivalue(archive, entry.value(), path)});
      }
      return {std::move(dict)};
    }
    throw DataError("the pickle holds a value of type " + value.tagKind(), path, kRemedy);
  }

  static Tensor from_tensor(const Archive& archive, const at::Tensor& tensor) {
    const at::Tensor rows = archive.checked(tensor).contiguous();
    Tensor out(archive.dtype_of(rows), rows.sizes().vec());
    if (!out.data.empty()) std::memcpy(out.data.data(), rows.const_data_ptr(), out.data.size());
    return out;
  }

  static c10::IValue to_ivalue(const PtValue& value) {
    struct Visitor {
      c10::IValue operator()(std::monostate) const { return {}; }
      c10::IValue operator()(bool v) const { return v; }
      c10::IValue operator()(std::int64_t v) const { return v; }
      c10::IValue operator()(double v) const { return v; }
      c10::IValue operator()(const std::string& v) const { return v; }
      c10::IValue operator()(const Tensor& v) const {
        // The pickler only reads it.
        return at::from_blob(const_cast<std::byte*>(v.data.data()), v.shape, at::dtype(scalar_type(v.dtype)));
      }
      c10::IValue operator()(const PtList& v) const {
        c10::impl::GenericList list(c10::AnyType::get());
        for (const PtValue& item : v) list.push_back(to_ivalue(item));
        return list;
      }
      c10::IValue operator()(const PtDict& v) const {
        const bool by_number = !v.empty() && v.front().key.get_if<std::int64_t>() != nullptr;
        const c10::TypePtr key = by_number ? c10::TypePtr(c10::IntType::get()) : c10::TypePtr(c10::StringType::get());
        c10::impl::GenericDict dict(key, c10::AnyType::get());
        for (const auto& [name, item] : v) dict.insert(to_ivalue(name), to_ivalue(item));
        return dict;
      }
    };
    return std::visit(Visitor{}, value.value);
  }

  static void write_archive(const std::filesystem::path& path, const std::string& pickle,
                            const std::vector<at::Tensor>& tensors) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), std::fclose);
    int failure = file != nullptr ? 0 : errno;
    const auto sink = [&](const void* data, std::size_t size) {
      if (failure == 0 && size > 0 && std::fwrite(data, 1, size, file.get()) != size) failure = errno;
      return size;  // the writer must not throw from its destructor; `failure` is looked at below
    };
    if (failure == 0) {
      caffe2::serialize::PyTorchStreamWriter writer(sink);
      writer.writeRecord("data.pkl", pickle.data(), pickle.size());
      writer.writeRecord("byteorder", "little", 6);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        writer.writeRecord("data/" + std::to_string(i), tensors[i].const_data_ptr(), tensors[i].nbytes());
      }
      writer.writeEndOfFile();
      if (failure == 0 && std::fflush(file.get()) != 0) failure = errno;
    }
    if (failure != 0) {
      throw IoError(std::string("cannot write: ") + std::strerror(failure), path.string(),
                    "free some disk space or choose another place, then run again");
    }
  }
};

}  // namespace
}  // namespace oscar

extern "C" const oscar::PtPlugin* oscar_pt_plugin() {
  static const oscar::TorchPlugin plugin;
  return &plugin;
}
