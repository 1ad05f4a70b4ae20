// SPDX-License-Identifier: MIT
#include "tensor/pt.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>

#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "tensor/pickle.hpp"
#include "tensor/zip.hpp"

namespace oscar {
namespace {

constexpr char kPtRemedy[] = "fetch or write the file again; only zip archives made by torch.save can be read";
constexpr std::string_view kPickle = "/data.pkl";
/// Where the elements of a tensor begin, for those who map the file.
constexpr std::uint64_t kAlignment = 64;
/// Tensors that share a record are read as often: with a limit, in sizes of the archive.
constexpr std::uint64_t kMaxCopies = 256;

/// An archive whose tensors are parts of the file.
class Archive {
 public:
  explicit Archive(const std::filesystem::path& path)
      : path_(path.string()),
        file_(path),
        directory_(
            file_.bytes().size(),
            [this](std::uint64_t offset, std::span<std::byte> to) { read_at(file_.descriptor(), offset, to); }, path_,
            kPtRemedy),
        bytes_left_(kMaxCopies * file_.bytes().size()) {
    for (const std::string& name : directory_.names()) {
      if (!name.ends_with(kPickle) || name.find('/') != name.size() - kPickle.size()) continue;
      if (!folder_.empty()) throw DataError("the archive has two pickles", path_, kPtRemedy);
      folder_ = name.substr(0, name.find('/') + 1);
    }
    if (folder_.empty()) throw DataError("not a PyTorch archive: it has no member data.pkl", path_, kPtRemedy);
  }

  /// The value, with what `make` makes of its tensors.
  PtValue read(const std::function<PtValue(const PickledTensor&)>& make) {
    const std::string name = folder_ + "data.pkl";
    const ZipMember member = directory_.find(name);
    std::string pickle(member.size, '\0');
    read_at(file_.descriptor(), member.offset, std::as_writable_bytes(std::span(pickle)));
    directory_.check(name, member, std::as_bytes(std::span(pickle)));
    return read_pickle(pickle, make, path_);
  }

  Tensor tensor_of(const PickledTensor& tensor) {
    const ZipMember record = record_of(tensor);
    return gather(tensor, file_.bytes().subspan(record.offset, record.size));
  }

  [[nodiscard]] std::uint64_t offset_of(const PickledTensor& tensor) {
    const ZipMember record = record_of(tensor);
    return record.size == 0 ? 0 : record.offset + static_cast<std::uint64_t>(tensor.offset) * size_of(tensor.dtype);
  }

 private:
  /// The record of a tensor that lies inside it. All tensors together have no more bytes than the archive accounts for.
  [[nodiscard]] ZipMember record_of(const PickledTensor& tensor) {
    const auto elements = static_cast<std::uint64_t>(num_elements(tensor.shape));
    if (elements > bytes_left_ / size_of(tensor.dtype)) {
      throw DataError("the tensors have more elements than the archive accounts for", path_,
                      "save them with .contiguous(), each of them once");
    }
    bytes_left_ -= elements * size_of(tensor.dtype);
    // Empty tensors may have none.
    const ZipMember record =
        num_elements(tensor.shape) > 0 ? directory_.find(folder_ + "data/" + tensor.record) : ZipMember{};
    require_inside(tensor, record.size, path_);
    return record;
  }

  std::string path_;
  MappedFile file_;
  ZipDirectory directory_;
  std::uint64_t bytes_left_;
  std::string folder_;  // that all members are in, with its slash
};

/// As torch.save names and orders them.
void write_archive(const PtValue& value, const std::function<void(std::string_view)>& write) {
  std::vector<const Tensor*> tensors;
  const std::string pickle = write_pickle(value, tensors);
  ZipWriter writer(write, kAlignment);
  writer.add("archive/data.pkl", pickle);
  writer.add("archive/byteorder", "little");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& data = tensors[i]->data;
    writer.add("archive/data/" + std::to_string(i), {reinterpret_cast<const char*>(data.data()), data.size()});
  }
  writer.add("archive/version", "3\n");
  writer.finish();
}

}  // namespace

const PtValue* PtValue::find(const std::string& key) const {
  const auto* dict = get_if<PtDict>();
  if (dict == nullptr) return nullptr;
  for (const auto& [name, member] : *dict) {
    const auto* text = name.get_if<std::string>();
    if (text != nullptr && *text == key) return &member;
  }
  return nullptr;
}

const PtValue* PtValue::find(std::int64_t key) const {
  const auto* dict = get_if<PtDict>();
  if (dict == nullptr) return nullptr;
  for (const auto& [name, member] : *dict) {
    const auto* number = name.get_if<std::int64_t>();
    if (number != nullptr && *number == key) return &member;
  }
  return find(std::to_string(key));
}

PtValue read_pt(const std::filesystem::path& path) {
  Archive archive(path);
  return archive.read([&](const PickledTensor& tensor) { return PtValue{archive.tensor_of(tensor)}; });
}

Tensor read_pt_tensor(const std::filesystem::path& path) {
  PtValue value = read_pt(path);
  auto* tensor = std::get_if<Tensor>(&value.value);
  if (tensor == nullptr) {
    throw DataError("expected an archive with one bare tensor", path.string(), "check that this is a dump's chunk");
  }
  return std::move(*tensor);
}

PtValue locate_pt(const std::filesystem::path& path) {
  Archive archive(path);
  return archive.read([&](const PickledTensor& tensor) {
    const std::uint64_t offset = archive.offset_of(tensor);
    if (!tensor.is_contiguous()) {
      throw DataError("the tensor is a strided view", path.string(), "save it with .contiguous()");
    }
    return PtValue{TensorLocation{tensor.dtype, tensor.shape, offset}};
  });
}

TensorLocation locate_pt_tensor(const std::filesystem::path& path) {
  const PtValue value = locate_pt(path);
  if (const auto* location = value.get_if<TensorLocation>(); location != nullptr) return *location;
  throw DataError("expected an archive with one bare tensor", path.string(), "check that this is a dump's chunk");
}

void write_pt(const std::filesystem::path& path, const PtValue& value) {
  AtomicFile file(path);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(file.temporary_path().c_str(), "wb"),
                                                            std::fclose);
  const auto require = [&](bool written) {
    if (written) return;
    throw IoError(std::string("cannot write: ") + std::strerror(errno), file.temporary_path().string(),
                  "free some disk space or choose another place, then run again");
  };
  require(out != nullptr);
  write_archive(value, [&](std::string_view bytes) {
    require(std::fwrite(bytes.data(), 1, bytes.size(), out.get()) == bytes.size());
  });
  require(std::fflush(out.get()) == 0);
  file.commit();
}

}  // namespace oscar
