// SPDX-License-Identifier: MIT
#include "tensor/pt.hpp"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "base/errors.hpp"
#include "base/files.hpp"

namespace oscar {
namespace {

constexpr char kPtRemedy[] = "fetch or write the file again; only zip archives made by torch.save can be read";
constexpr std::string_view kPickle = "/data.pkl";
/// Where the elements of a tensor begin, for those who map the file.
constexpr std::uint64_t kAlignment = 64;
/// Tensors that share a record are read as often: with a limit, in sizes of the archive.
constexpr std::uint64_t kMaxCopies = 16;

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
    if (const std::string order = folder_ + "byteorder"; directory_.has(order) && content_of(order) != "little") {
      throw DataError("the archive's numbers are not little-endian", path_,
                      "torch.save it again on a little-endian machine");
    }
  }

  /// The value, with what `make` makes of its tensors.
  PtValue read(const std::function<PtValue(const PickledTensor&)>& make) {
    return read_pickle(content_of(folder_ + "data.pkl"), make, path_);
  }

  Tensor tensor_of(const PickledTensor& tensor) {
    const ZipMember record = record_of(tensor);
    const auto bytes = file_.bytes().subspan(record.offset, record.size);
    if (record.size > 0 && checked_.insert(tensor.record).second)
      directory_.check("data/" + tensor.record, record, bytes);
    return gather(tensor, bytes);
  }

  [[nodiscard]] std::uint64_t offset_of(const PickledTensor& tensor) {
    const ZipMember record = record_of(tensor);
    return record.size == 0 ? 0 : record.offset + static_cast<std::uint64_t>(tensor.offset) * size_of(tensor.dtype);
  }

 private:
  [[nodiscard]] std::string content_of(const std::string& name) const {
    const ZipMember member = directory_.find(name);
    std::string content(member.size, '\0');
    read_at(file_.descriptor(), member.offset, std::as_writable_bytes(std::span(content)));
    directory_.check(name, member, std::as_bytes(std::span(content)));
    return content;
  }
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
  std::string folder_;             // that all members are in, with its slash
  std::set<std::string> checked_;  // records
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

// Records of a zip file, little-endian.
constexpr std::uint32_t kLocalRecord = 0x04034b50, kCentralRecord = 0x02014b50, kEndRecord = 0x06054b50,
                        kEnd64Record = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr std::uint64_t kMaxComment = 65535, kNearEnd = 4096, kMaxDirectory = 256U << 20U;
constexpr std::uint16_t kEncrypted = 1, kVersion = 20, kVersion64 = 45, kZip64 = 1, kPadding = 0x4246;
/// What stands in a field of 16 or 32 bits whose value is in a zip64 record.
constexpr std::uint16_t kElsewhere16 = std::numeric_limits<std::uint16_t>::max();
constexpr std::uint32_t kElsewhere32 = std::numeric_limits<std::uint32_t>::max();

template <class T>
T at(std::string_view bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::uint32_t checksum_of(const void* bytes, std::size_t size) {
  return static_cast<std::uint32_t>(::crc32_z(0, static_cast<const Bytef*>(bytes), size));
}

std::uint32_t capped32(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, kElsewhere32));
}

/// The content of the extra field of zip64; empty: there is none.
std::string_view zip64_part(std::string_view extra) {
  while (extra.size() >= 4) {
    const auto id = at<std::uint16_t>(extra, 0);
    const std::size_t size = at<std::uint16_t>(extra, 2);
    if (size > extra.size() - 4) break;
    if (id == kZip64) return extra.substr(4, size);
    extra.remove_prefix(4 + size);
  }
  return {};
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

ZipDirectory::ZipDirectory(std::uint64_t size, Read read, std::string where, std::string remedy)
    : size_(size), read_(std::move(read)), where_(std::move(where)), remedy_(std::move(remedy)) {
  for (const std::uint64_t tail : {kNearEnd, kEndBytes + kMaxComment}) {
    const std::uint64_t begin = size_ - std::min(size_, tail);
    const std::string last = bytes(begin, size_ - begin);
    for (std::size_t back = kEndBytes; back <= last.size(); ++back) {
      if (at<std::uint32_t>(last, last.size() - back) == kEndRecord) {
        read_directory(size_ - back);
        return;
      }
    }
  }
  refuse("not a zip archive, or truncated");
}

void ZipDirectory::refuse(const std::string& what) const { throw DataError(what, where_, remedy_); }

std::string ZipDirectory::bytes(std::uint64_t offset, std::uint64_t count) const {
  if (offset > size_ || count > size_ - offset) refuse("the archive is damaged: its directory leads out of it");
  std::string out(count, '\0');
  if (count > 0) read_(offset, std::as_writable_bytes(std::span(out)));
  return out;
}

void ZipDirectory::read_directory(std::uint64_t end) {
  const std::string record = bytes(end, kEndBytes);
  std::uint64_t count = at<std::uint16_t>(record, 10), size = at<std::uint32_t>(record, 12),
                offset = at<std::uint32_t>(record, 16);
  if (count == kElsewhere16 || size == kElsewhere32 || offset == kElsewhere32) {
    const std::string locator = bytes(end - std::min(end, kLocator64Bytes), kLocator64Bytes);
    const std::string large = bytes(at<std::uint64_t>(locator, 8), kEnd64Bytes);
    if (at<std::uint32_t>(locator, 0) != kLocator64 || at<std::uint32_t>(large, 0) != kEnd64Record) {
      refuse("the archive is damaged: its directory breaks off");
    }
    count = at<std::uint64_t>(large, 32), size = at<std::uint64_t>(large, 40), offset = at<std::uint64_t>(large, 48);
  }
  if (size > kMaxDirectory) refuse("the archive has a directory of more than 256 MiB");
  if (offset > end || size > end - offset) refuse("the archive is damaged: its directory breaks off");
  add_entries(bytes(offset, size), count);
}

void ZipDirectory::add_entries(const std::string& directory, std::uint64_t count) {
  std::string_view rest = directory;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t name = rest.size() < kCentralBytes ? 0 : at<std::uint16_t>(rest, 28);
    const std::size_t extra = rest.size() < kCentralBytes ? 0 : at<std::uint16_t>(rest, 30);
    if (rest.size() < kCentralBytes + name + extra || at<std::uint32_t>(rest, 0) != kCentralRecord) {
      refuse("the archive is damaged: its directory breaks off");
    }
    Entry entry{.header = at<std::uint32_t>(rest, 42),
                .stored = at<std::uint32_t>(rest, 20),
                .size = at<std::uint32_t>(rest, 24),
                .checksum = at<std::uint32_t>(rest, 16),
                .flags = at<std::uint16_t>(rest, 8),
                .method = at<std::uint16_t>(rest, 10)};
    std::string_view large = zip64_part(rest.substr(kCentralBytes + name, extra));
    for (std::uint64_t* field : {&entry.size, &entry.stored, &entry.header}) {
      if (*field != kElsewhere32) continue;
      if (large.size() < sizeof *field) refuse("the archive is damaged: its directory breaks off");
      *field = at<std::uint64_t>(large, 0);
      large.remove_prefix(sizeof *field);
    }
    const std::string key(rest.substr(kCentralBytes, name));
    if (!entries_.emplace(key, entry).second) refuse("the archive has the member " + key + " twice");
    rest.remove_prefix(std::min(rest.size(), kCentralBytes + name + extra + at<std::uint16_t>(rest, 32)));
  }
}

std::vector<std::string> ZipDirectory::names() const {
  std::vector<std::string> out;
  for (const auto& [name, entry] : entries_) out.push_back(name);
  return out;
}

ZipMember ZipDirectory::find(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) refuse("the archive has no member " + name);
  const Entry& entry = found->second;
  const std::string member = "the member " + name;
  if (entry.method != 0) refuse(member + " is compressed");
  if ((entry.flags & kEncrypted) != 0) refuse(member + " is encrypted");
  if (entry.stored != entry.size) refuse(member + " has two sizes");
  const bool inside = entry.header <= size_ && kLocalBytes <= size_ - entry.header;
  const std::string header = inside ? bytes(entry.header, kLocalBytes) : std::string();
  if (!inside || at<std::uint32_t>(header, 0) != kLocalRecord) {
    refuse("the archive is damaged: no member where its directory says, " + name);
  }
  const std::uint64_t offset =
      entry.header + kLocalBytes + at<std::uint16_t>(header, 26) + at<std::uint16_t>(header, 28);
  if (offset > size_ || entry.size > size_ - offset) refuse("truncated: " + member + " ends beyond the file");
  return {offset, entry.size, entry.checksum};
}

void ZipDirectory::check(const std::string& name, const ZipMember& member, std::span<const std::byte> bytes) const {
  // torch.save writes zeros where torch.serialization.set_crc32_options(False) spares it the checksums.
  const bool has_checksum = member.checksum != 0;
  const bool differs = has_checksum && checksum_of(bytes.data(), bytes.size()) != member.checksum;
  if (bytes.size() != member.size || differs) {
    refuse("the member " + name + " is damaged: its checksum differs");
  }
}

ZipWriter::ZipWriter(std::function<void(std::string_view)> write, std::uint64_t alignment)
    : write_(std::move(write)), alignment_(alignment) {}

void ZipWriter::put(std::string_view bytes) {
  write_(bytes);
  position_ += bytes.size();
}

void ZipWriter::add(const std::string& name, std::string_view content) {
  constexpr std::uint16_t kFirstDay = 1U << 5U | 1U;
  const std::uint64_t begin = position_, size = content.size();
  const bool large_size = size >= kElsewhere32, large_place = begin >= kElsewhere32;
  // Version … the name's length, which the two records of a member share.
  std::string common;
  append(common, large_size || large_place ? kVersion64 : kVersion);
  append(common, std::uint32_t{0});  // no flags, stored
  append(common, std::uint16_t{0});
  append(common, kFirstDay);
  append(common, checksum_of(content.data(), size));
  append(common, capped32(size));
  append(common, capped32(size));
  append(common, static_cast<std::uint16_t>(name.size()));

  std::string sizes;  // of zip64, if they are large
  for (int i = 0; large_size && i < 2; ++i) append(sizes, size);
  const auto extra = [](std::uint16_t id, std::string_view bytes) {
    std::string out;
    append(out, id);
    append(out, static_cast<std::uint16_t>(bytes.size()));
    return out.append(bytes);
  };
  std::string local = sizes.empty() ? std::string() : extra(kZip64, sizes);
  if (alignment_ > 1) {
    const std::uint64_t unaligned = begin + kLocalBytes + name.size() + local.size() + 4;
    local += extra(kPadding, std::string((alignment_ - unaligned % alignment_) % alignment_, '\0'));
  }
  std::string header;
  append(header, kLocalRecord);
  header += common;
  append(header, static_cast<std::uint16_t>(local.size()));
  put(header + name + local);
  put(content);

  if (large_place) append(sizes, begin);
  const std::string central = sizes.empty() ? std::string() : extra(kZip64, sizes);
  append(directory_, kCentralRecord);
  append(directory_, kVersion);
  directory_ += common;
  append(directory_, static_cast<std::uint16_t>(central.size()));
  directory_.append(10, '\0');  // no comment, first disk, no attributes
  append(directory_, capped32(begin));
  directory_ += name + central;
  ++count_;
}

void ZipWriter::finish() {
  const std::uint64_t offset = position_, size = directory_.size();
  const auto count = static_cast<std::uint16_t>(std::min<std::uint64_t>(count_, kElsewhere16));
  put(directory_);
  std::string end;
  if (offset >= kElsewhere32 || size >= kElsewhere32 || count_ >= kElsewhere16) {
    const std::uint64_t large = position_;
    append(end, kEnd64Record);
    append(end, kEnd64Bytes - 12);  // what follows this field
    append(end, kVersion64);
    append(end, kVersion64);
    append(end, std::uint64_t{0});  // one disk
    for (const std::uint64_t value : {count_, count_, size, offset}) append(end, value);
    append(end, kLocator64);
    append(end, std::uint32_t{0});
    append(end, large);
    append(end, std::uint32_t{1});
  }
  append(end, kEndRecord);
  append(end, std::uint32_t{0});  // one disk
  append(end, count);
  append(end, count);
  append(end, capped32(size));
  append(end, capped32(offset));
  append(end, std::uint16_t{0});
  put(end);
}

}  // namespace oscar
