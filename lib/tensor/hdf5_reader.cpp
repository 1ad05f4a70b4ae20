// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/threads.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/hdf5_library.hpp"

namespace oscar {
namespace {

// libhdf5 1.10 reads beyond its buffers where a file's metadata is forged, so files of others are tried first.

constexpr int kMostDepth = 32, kMostObjects = 100'000;  // groups can be members of themselves
constexpr unsigned kMostSeconds = 60;

template <class Read>
void ignore_errors(const Read& read) {
  try {
    read();
  } catch (const Error&) {
  }
}

void read_below(const Hdf5Reader& file, const std::string& object, int depth, int& left) {
  if (depth > kMostDepth || left-- <= 0) return;
  ignore_errors([&] {
    for (const std::string& name : file.attribute_names(object)) {
      ignore_errors([&] { (void)file.attribute(object, name); });
    }
  });
  ignore_errors([&] { (void)file.read(object); });
  ignore_errors([&] {
    for (const std::string& name : file.members(object)) {
      read_below(file, (object == "/" ? "" : object) + "/" + name, depth + 1, left);
    }
  });
}

/// Reads all of the file in another process. Throws DataError if that process does not survive it.
void try_hdf5(const std::filesystem::path& path) {
  const auto read_all = [&] {
    int left = kMostObjects;
    const Hdf5Reader file(path, Hdf5Source::kOwn);
    read_below(file, "/", 0, left);
    ignore_errors([&] { file.require_own_links(); });
  };
  if (survives(read_all, kMostSeconds)) return;
  throw DataError("the HDF5 library does not survive this file: it is damaged, or forged", path.string(),
                  "fetch or write the file again; if it should be sound, convert it elsewhere to .safetensors");
}

constexpr char kRemedy[] = "fetch or write the file again";
constexpr std::uint64_t kMaxExpansion = 1032;  // of deflate

}  // namespace

struct Hdf5Reader::Impl {
  explicit Impl(const std::filesystem::path& source) : path(source.string()), file(open(source)) {}

  static Handle open(const std::filesystem::path& source) {
    silence_library();
    Handle opened(H5Fopen(source.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
    if (!opened.ok()) throw DataError("not an HDF5 file, or truncated", source.string(), kRemedy);
    return opened;
  }

  [[noreturn]] void fail(const std::string& what, const std::string& object) const {
    throw DataError(what, path + ":" + object, kRemedy);
  }

  /// Refuses links that lead to another file, or anywhere but to an object of their own: no hash of this file covers
  /// what they lead to.
  void require_own(const std::string& object) const {
    for (std::size_t slash = object.find('/', 1);; slash = object.find('/', slash + 1)) {
      const std::string part = object.substr(0, slash);
      H5L_info_t info;
      if (part.size() > 1 && H5Lget_info(file.get(), part.c_str(), &info, H5P_DEFAULT) >= 0 &&
          info.type != H5L_TYPE_HARD) {
        fail("a link to another place, which oscar does not follow", part);
      }
      if (slash == std::string::npos) return;
    }
  }

  [[nodiscard]] bool has(const std::string& object) const {
    require_own(object);
    return Handle(H5Oopen(file.get(), object.c_str(), H5P_DEFAULT), H5Oclose).ok();
  }

  [[nodiscard]] Handle open_object(const std::string& object) const {
    require_own(object);
    Handle handle(H5Oopen(file.get(), object.c_str(), H5P_DEFAULT), H5Oclose);
    if (!handle.ok()) fail("no such object", object);
    return handle;
  }

  [[nodiscard]] Handle open_dataset(const std::string& dataset) const {
    require_own(dataset);
    Handle set(H5Dopen2(file.get(), dataset.c_str(), H5P_DEFAULT), H5Dclose);
    if (!set.ok()) fail("no such dataset", dataset);
    const Handle made(H5Dget_create_plist(set.get()), H5Pclose);
    if (H5Pget_layout(made.get()) == H5D_VIRTUAL || H5Pget_external_count(made.get()) != 0) {
      fail("the dataset lies in other files, which oscar does not follow", dataset);
    }
    return set;
  }

  /// Whether `count` elements of `size` bytes fit into the file, compressed or not: its sizes are anybody's claim.
  [[nodiscard]] bool may_hold(std::uint64_t count, std::uint64_t size, std::uint64_t stored) const {
    return count <= std::min(stored, regular_file_size(path)) * kMaxExpansion / std::max<std::uint64_t>(size, 1);
  }

  void require_room(const Handle& set, const TensorLocation& found, const std::string& dataset) const {
    std::uint64_t bytes = size_of(found.dtype);
    bool sane = true;
    for (const std::int64_t dim : found.shape) sane = sane && dim >= 0 && !__builtin_mul_overflow(bytes, dim, &bytes);
    if (sane && may_hold(bytes, 1, H5Dget_storage_size(set.get()))) return;
    fail("the dataset claims more elements than the file holds", dataset);
  }

  /// Type and shape; no offset.
  [[nodiscard]] TensorLocation describe(const Handle& set, const std::string& dataset) const {
    const Handle space(H5Dget_space(set.get()), H5Sclose), type(H5Dget_type(set.get()), H5Tclose);
    std::vector<hsize_t> dims(static_cast<std::size_t>(std::max(H5Sget_simple_extent_ndims(space.get()), 0)));
    H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr);
    for (const DType dtype : kStorable) {
      if (H5Tequal(type.get(), native_type(dtype)) > 0) return {dtype, {dims.begin(), dims.end()}, 0};
    }
    fail("unsupported element type", dataset);
  }

  std::string path;
  Handle file;
};

Hdf5Reader::Hdf5Reader(const std::filesystem::path& path, Hdf5Source source) {
  (void)regular_file_size(path);  // a missing file gets its own message, and a pipe is not waited for
  if (source == Hdf5Source::kOthers) try_hdf5(path);
  impl_ = std::make_unique<Impl>(path);
  if (source == Hdf5Source::kOthers) require_own_links();
}
Hdf5Reader::~Hdf5Reader() = default;

bool Hdf5Reader::has(const std::string& object) const { return impl_->has(object); }

void Hdf5Reader::require_own_links() const {
  std::string link;
  const auto find_link = [](hid_t, const char* name, const H5L_info_t* info, void* out) -> herr_t {
    if (info->type == H5L_TYPE_HARD) return 0;
    *static_cast<std::string*>(out) = name;
    return 1;
  };
  if (H5Lvisit(impl_->file.get(), H5_INDEX_NAME, H5_ITER_NATIVE, find_link, &link) < 0) {
    impl_->fail("cannot list the file", "/");
  }
  if (!link.empty()) impl_->fail("a link to another place, which oscar does not follow", "/" + link);
}

std::vector<std::string> Hdf5Reader::members(const std::string& group) const {
  impl_->require_own(group);
  const Handle handle(H5Gopen2(impl_->file.get(), group.c_str(), H5P_DEFAULT), H5Gclose);
  if (!handle.ok()) impl_->fail("no such group", group);
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  if (H5Literate(handle.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &names) < 0) {
    impl_->fail("cannot list the group", group);
  }
  return names;
}

Tensor Hdf5Reader::read(const std::string& dataset) const {
  const Handle set = impl_->open_dataset(dataset);
  const TensorLocation found = impl_->describe(set, dataset);
  impl_->require_room(set, found, dataset);
  Tensor tensor(found.dtype, found.shape);
  if (H5Dread(set.get(), native_type(found.dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.data.data()) < 0) {
    impl_->fail("cannot read the dataset; the file may be truncated", dataset);
  }
  return tensor;
}

TensorLocation Hdf5Reader::locate(const std::string& dataset) const {
  const Handle set = impl_->open_dataset(dataset);
  TensorLocation found = impl_->describe(set, dataset);
  const haddr_t offset = H5Dget_offset(set.get());
  if (offset == HADDR_UNDEF) impl_->fail("the dataset is chunked, compressed, external or empty", dataset);
  found.offset = offset;
  return found;
}

std::vector<std::string> Hdf5Reader::attribute_names(const std::string& object) const {
  const Handle handle = impl_->open_object(object);
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  if (H5Aiterate2(handle.get(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, collect, &names) < 0) {
    impl_->fail("cannot list the attributes", object);
  }
  return names;
}

bool Hdf5Reader::has_attribute(const std::string& object, const std::string& name) const {
  impl_->require_own(object);
  return H5Aexists_by_name(impl_->file.get(), object.c_str(), name.c_str(), H5P_DEFAULT) > 0;
}

Hdf5Attribute Hdf5Reader::attribute(const std::string& object, const std::string& name) const {
  impl_->require_own(object);
  const Handle handle(H5Aopen_by_name(impl_->file.get(), object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
                      H5Aclose);
  if (!handle.ok()) impl_->fail("no attribute \"" + name + "\"", object);
  const Handle type(H5Aget_type(handle.get()), H5Tclose), space(H5Aget_space(handle.get()), H5Sclose);
  const auto count = static_cast<std::size_t>(std::max<hssize_t>(H5Sget_simple_extent_npoints(space.get()), 0));
  herr_t status = -1;
  Hdf5Attribute value;
  if (!impl_->may_hold(count, H5Tget_size(type.get()), UINT64_MAX)) {
    impl_->fail("attribute \"" + name + "\" claims more than the file holds", object);
  }
  if (H5Tget_class(type.get()) == H5T_STRING && H5Tis_variable_str(type.get()) == 0 && count == 1) {
    std::string text(H5Tget_size(type.get()), '\0');
    status = H5Aread(handle.get(), type.get(), text.data());
    text.resize(std::min(text.find('\0'), text.size()));
    value = text;
  } else if (H5Tget_class(type.get()) == H5T_INTEGER && count == 1) {
    std::int64_t number = 0;
    status = H5Aread(handle.get(), H5T_NATIVE_INT64, &number);
    value = number;
  } else if (H5Tget_class(type.get()) == H5T_FLOAT && count > 0) {
    std::vector<double> list(count);
    status = H5Aread(handle.get(), H5T_NATIVE_DOUBLE, list.data());
    if (!std::ranges::all_of(list, [](double x) { return std::isfinite(x); })) {
      impl_->fail("attribute \"" + name + "\" is NaN or infinite", object);
    }
    if (H5Sget_simple_extent_ndims(space.get()) == 0) {
      value = list.at(0);
    } else {
      value = list;
    }
  }
  if (status < 0) impl_->fail("cannot read attribute \"" + name + "\"", object);
  return value;
}

}  // namespace oscar
