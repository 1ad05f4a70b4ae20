// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/atomic_file.hpp"
#include "base/check.hpp"
#include "base/errors.hpp"
#include "tensor/gguf.hpp"
#include "tensor/gguf_cursor.hpp"

namespace oscar {
namespace {

/// A header under construction.
class Header {
 public:
  template <class T>
  void add(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(const std::string& text) {
    add(std::uint64_t{text.size()});
    bytes_ += text;
  }
  void add(std::span<const std::byte> bytes) {
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void pad(std::uint64_t alignment) { bytes_.resize(gguf_aligned(bytes_.size(), alignment), '\0'); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

/// A tensor of the copy: from the source, or added.
struct Outgoing {
  std::string name;
  std::vector<std::uint64_t> dims;
  std::uint32_t type = kGgmlF32;
  std::span<const std::byte> data;
};

template <class List>
bool names(const List& added, const std::string& name) {
  return std::any_of(added.begin(), added.end(), [&](const auto& item) { return item.first == name; });
}

Header make_header(const GgufFile& source, const std::vector<Outgoing>& tensors,
                   const std::vector<std::pair<std::string, std::string>>& texts) {
  Header header;
  header.add(std::as_bytes(std::span("GGUF", 4)));
  header.add(source.version());
  header.add(std::uint64_t{tensors.size()});
  const auto kept = [&](const GgufEntry& entry) { return !names(texts, entry.key); };
  header.add(static_cast<std::uint64_t>(std::count_if(source.entries().begin(), source.entries().end(), kept)) +
             texts.size());
  for (const GgufEntry& entry : source.entries()) {
    if (!kept(entry)) continue;
    header.add(entry.key);
    header.add(entry.type);
    header.add(entry.value);
  }
  for (const auto& [key, text] : texts) {
    header.add(key);
    header.add(kGgufString);
    header.add(text);
  }
  std::uint64_t offset = 0;
  for (const Outgoing& tensor : tensors) {
    header.add(tensor.name);
    header.add(static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::uint64_t dim : tensor.dims) header.add(dim);
    header.add(tensor.type);
    header.add(offset);
    offset = gguf_aligned(offset + tensor.data.size(), source.alignment());
  }
  header.pad(source.alignment());
  return header;
}

[[noreturn]] void throw_write(const std::filesystem::path& path) {
  throw IoError(std::string("cannot write: ") + std::strerror(errno), path.string(),
                "free some disk space or choose another place, then run again");
}

void write_all(std::FILE* file, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) throw_write(path);
}

}  // namespace

void write_gguf_copy(const std::filesystem::path& path, const GgufFile& source,
                     const std::vector<std::pair<std::string, Tensor>>& tensors,
                     const std::vector<std::pair<std::string, std::string>>& texts) {
  std::vector<Outgoing> outgoing;
  for (const GgufTensor& tensor : source.tensors()) {
    if (!names(tensors, tensor.name)) outgoing.push_back({tensor.name, tensor.dims, tensor.type, tensor.data});
  }
  for (const auto& [name, tensor] : tensors) {
    OSCAR_CHECK(tensor.dtype == DType::kF32);
    outgoing.push_back({name, {tensor.shape.rbegin(), tensor.shape.rend()}, kGgmlF32, tensor.data});
  }
  AtomicFile out(path);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(out.temporary_path().c_str(), "wbe"), &std::fclose);
  if (file == nullptr) throw_write(path);
  write_all(file.get(), make_header(source, outgoing, texts).bytes(), path);
  for (const Outgoing& tensor : outgoing) {
    write_all(file.get(), tensor.data, path);
    const std::vector<std::byte> padding(gguf_aligned(tensor.data.size(), source.alignment()) - tensor.data.size());
    write_all(file.get(), padding, path);
  }
  if (std::fclose(file.release()) != 0) throw_write(path);
  out.commit();
}

}  // namespace oscar
