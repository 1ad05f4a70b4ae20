// SPDX-License-Identifier: MIT
#include "tensor/npz.hpp"

#include <cstring>
#include <limits>

#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "tensor/npy.hpp"
#include "tensor/zip.hpp"

namespace oscar {
namespace {

constexpr char kNpzRemedy[] = "write the file with numpy.savez, not savez_compressed";
constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::uint32_t>::max();

}  // namespace

NpzFile::NpzFile(const std::filesystem::path& path) : path_(path.string()), file_(path) {
  const auto file = file_.bytes();
  const ZipDirectory directory(
      file.size(),
      [file](std::uint64_t offset, std::span<std::byte> to) { std::memcpy(to.data(), &file[offset], to.size()); },
      path_, kNpzRemedy);
  for (const std::string& name : directory.names()) {
    const ZipMember member = directory.find(name);
    const auto bytes = file.subspan(member.offset, member.size);
    directory.check(name, member, bytes);
    members_.emplace(name, bytes);
  }
}

Tensor NpzFile::read(const std::string& array) const {
  const auto found = members_.find(array + ".npy");
  if (found == members_.end()) {
    throw DataError("there is no array " + array, path_, "check that this is the right file");
  }
  return parse_npy(found->second, path_ + ", array " + array);
}

void write_npz(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& arrays,
               const std::vector<std::pair<std::string, std::string>>& texts) {
  std::string file;
  ZipWriter writer(
      [&](std::string_view bytes) {
        if (bytes.size() > kMaxBytes - file.size()) {
          throw DataError("the archive would have more than 4 GB", path.string(), "write another format");
        }
        file += bytes;
      },
      1);
  for (const auto& [name, array] : arrays) writer.add(name + ".npy", npy_bytes(array));
  for (const auto& [name, text] : texts) writer.add(name, text);
  writer.finish();
  write_file(path, file);
}

}  // namespace oscar
