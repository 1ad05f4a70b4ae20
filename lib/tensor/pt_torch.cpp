// SPDX-License-Identifier: MIT
// The plug-in behind pt.hpp: libtorch finds the records of an archive and writes archives; their pickles are read by
// pickle.hpp. Payloads are mapped, never copied twice.
#include <ATen/ops/from_blob.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "tensor/pickle.hpp"
#include "tensor/pt_plugin.hpp"

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

/// Tensors that share a record are read as often: with a limit, in sizes of the archive.
constexpr std::uint64_t kMaxCopies = 256;

/// How libtorch reads a file.
class Adapter : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit Adapter(const PlacedFile& file) : file_(file) {}
  [[nodiscard]] std::size_t size() const override { return file_.bytes().size(); }
  /// Fewer bytes than asked for are an error to libtorch. It may call from C, which exceptions should not pass: they
  /// are kept.
  std::size_t read(std::uint64_t offset, void* to, std::size_t count, const char*) const override {
    const std::uint64_t size = file_.bytes().size();
    count = std::min<std::uint64_t>(count, size - std::min(offset, size));
    try {
      file_.read(offset, {static_cast<std::byte*>(to), count});
      return count;
    } catch (...) {
      failure_ = std::current_exception();
      return 0;
    }
  }
  void rethrow() const {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  const PlacedFile& file_;
  mutable std::exception_ptr failure_;
};

/// An archive whose tensors are parts of the file.
class Archive {
 public:
  Archive(const PlacedFile& file, const std::string& name)
      : path_(name), file_(file), bytes_left_(kMaxCopies * file.bytes().size()) {}

  /// The value, with what `make` makes of its tensors.
  PtValue read(const std::function<Tensor(const PickledTensor&)>& make) {
    const auto adapter = std::make_shared<Adapter>(file_);
    try {
      reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(adapter);
      // torch.save does not compress: a pickle that would grow beyond its archive is there to fill the memory.
      if (reader_->getRecordSize("data.pkl") > file_.bytes().size()) {
        throw DataError("the pickle is compressed, to more than the whole archive", path_, kRemedy);
      }
      const auto [pickle, size] = reader_->getRecord("data.pkl");
      return read_pickle({static_cast<const char*>(pickle.get()), size}, make, path_);
    } catch (const c10::Error& error) {
      adapter->rethrow();
      // libtorch's message names its own classes; what it says of the file stands behind the last colon.
      const std::string text = error.what_without_backtrace();
      const std::string first = text.substr(0, std::min(text.find('\n'), text.find(". ")));
      const std::size_t colon = first.rfind(": ");
      const bool own = first.find("PytorchStreamReader") != std::string::npos;
      throw DataError("not a PyTorch archive, or a damaged one: " +
                          (own ? colon == std::string::npos ? "a record is missing" : first.substr(colon + 2) : first),
                      path_, kRemedy);
    }
  }

  /// The record of a tensor that lies inside it; of a file at a server, only where it is.
  std::span<const std::byte> record_of(const PickledTensor& tensor) {
    std::span<const std::byte> record;
    if (num_elements(tensor.shape) > 0) {  // empty tensors may have none
      const std::string name = "data/" + tensor.record;
      const std::size_t offset = reader_->getRecordOffset(name), size = reader_->getRecordSize(name);
      if (size > file_.bytes().size() || offset > file_.bytes().size() - size) {
        throw DataError("the archive is truncated", path_, kRemedy);
      }
      record = file_.bytes().subspan(offset, size);
    }
    require_inside(tensor, record.size(), path_);
    return record;
  }

  Tensor tensor_of(const PickledTensor& tensor) {
    const auto record = record_of(tensor);
    const auto elements = static_cast<std::uint64_t>(num_elements(tensor.shape));
    if (elements > bytes_left_ / size_of(tensor.dtype)) {
      throw DataError("the tensors have more elements than the archive accounts for", path_,
                      "save them with .contiguous(), each of them once");
    }
    bytes_left_ -= elements * size_of(tensor.dtype);
    if (file_.descriptor() >= 0) return gather(tensor, record);
    std::vector<std::byte> copy(record.size());
    if (!copy.empty()) file_.read(static_cast<std::uint64_t>(record.data() - file_.bytes().data()), copy);
    return gather(tensor, copy);
  }

  [[nodiscard]] std::uint64_t offset_of(const PickledTensor& tensor) {
    const auto record = record_of(tensor);
    if (record.empty()) return 0;
    return static_cast<std::uint64_t>(record.data() - file_.bytes().data()) +
           static_cast<std::uint64_t>(tensor.offset) * size_of(tensor.dtype);
  }

 private:
  std::string path_;
  const PlacedFile& file_;
  std::uint64_t bytes_left_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

class TorchPlugin : public PtPlugin {
 public:
  [[nodiscard]] PtValue read(const PlacedFile& file, const std::string& name) const override {
    Archive archive(file, name);
    return archive.read([&](const PickledTensor& tensor) { return archive.tensor_of(tensor); });
  }

  [[nodiscard]] TensorLocation locate(const PlacedFile& file, const std::string& name) const override {
    Archive archive(file, name);
    TensorLocation location;
    const PtValue value = archive.read([&](const PickledTensor& tensor) {
      const std::uint64_t offset = archive.offset_of(tensor);
      if (!tensor.is_contiguous()) {
        throw DataError("the tensor is a strided view", name, "save it with .contiguous()");
      }
      location = {tensor.dtype, tensor.shape, offset};
      return Tensor();
    });
    if (value.get_if<Tensor>() == nullptr) {
      throw DataError("expected an archive with one bare tensor", name, "check that this is a dump's chunk");
    }
    return location;
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
