// SPDX-License-Identifier: MIT
#include "tensor/hdf5.hpp"

#include <hdf5.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/threads.hpp"

namespace oscar {

/// An HDF5 identifier that closes itself. Negative identifiers are failures; the holder of a failure closes nothing.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&&) = delete;
  void reset() {
    if (id_ >= 0) close_(std::exchange(id_, -1));
  }
  [[nodiscard]] hid_t get() const { return id_; }
  [[nodiscard]] bool ok() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

namespace {

/// Silences the library; called before anything else of it. A file that could not be written would take the process
/// down at its end, where the library tries to write it again.
void silence_library() {
  H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

/// Makes a little-endian 16-bit float with these widths of exponent and mantissa, as HDF5 describes such types.
hid_t make_half(std::size_t exponent, std::size_t mantissa) {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  H5Tset_fields(type, 15, mantissa, exponent, 0, mantissa);
  H5Tset_size(type, 2);
  H5Tset_ebias(type, (std::size_t{1} << (exponent - 1)) - 1);
  return type;
}

hid_t native_type(DType dtype) {
  static const hid_t kFloat16 = make_half(5, 10), kBfloat16 = make_half(8, 7);
  switch (dtype) {
    case DType::kF16:
      return kFloat16;
    case DType::kBF16:
      return kBfloat16;
    case DType::kF64:
      return H5T_NATIVE_DOUBLE;
    case DType::kF32:
      return H5T_NATIVE_FLOAT;
    case DType::kI64:
      return H5T_NATIVE_INT64;
    case DType::kI32:
      return H5T_NATIVE_INT32;
    case DType::kU8:
      return H5T_NATIVE_UINT8;
    default:
      return -1;
  }
}

constexpr std::array kStorable{DType::kF64, DType::kF32, DType::kF16, DType::kBF16,
                               DType::kI64, DType::kI32, DType::kU8};

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

constexpr char kHdf5Remedy[] = "fetch or write the file again";
constexpr std::uint64_t kMaxExpansion = 1032;  // of deflate

/// Properties of a new object without creation dates: the same content gives the same bytes, whenever it is written.
Handle without_dates(hid_t property_class) {
  Handle options(H5Pcreate(property_class), H5Pclose);
  H5Pset_obj_track_times(options.get(), false);
  return options;
}

/// Adds the name of a link, or of an attribute, to a vector of texts: for iterators of the library.
template <class Info>
herr_t collect(hid_t, const char* name, const Info*, void* out) {
  static_cast<std::vector<std::string>*>(out)->emplace_back(name);
  return 0;
}

}  // namespace

struct Hdf5Reader::Impl {
  explicit Impl(const std::filesystem::path& source) : path(source.string()), file(open(source)) {}

  static Handle open(const std::filesystem::path& source) {
    silence_library();
    Handle opened(H5Fopen(source.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
    if (!opened.ok()) throw DataError("not an HDF5 file, or truncated", source.string(), kHdf5Remedy);
    return opened;
  }

  [[noreturn]] void fail(const std::string& what, const std::string& object) const {
    throw DataError(what, path + ":" + object, kHdf5Remedy);
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
  if (H5Literate(handle.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect<H5L_info_t>, &names) < 0) {
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
  if (H5Aiterate2(handle.get(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, collect<H5A_info_t>, &names) < 0) {
    impl_->fail("cannot list the attributes", object);
  }
  return names;
}

std::optional<std::string> Hdf5Reader::attribute(const std::string& object, const std::string& name) const {
  impl_->require_own(object);
  const Handle handle(H5Aopen_by_name(impl_->file.get(), object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
                      H5Aclose);
  if (!handle.ok()) return std::nullopt;
  const Handle type(H5Aget_type(handle.get()), H5Tclose), space(H5Aget_space(handle.get()), H5Sclose);
  const bool is_text = H5Tget_class(type.get()) == H5T_STRING && H5Tis_variable_str(type.get()) == 0 &&
                       H5Sget_simple_extent_npoints(space.get()) == 1;
  if (!is_text || !impl_->may_hold(1, H5Tget_size(type.get()), UINT64_MAX)) return std::nullopt;
  std::string text(H5Tget_size(type.get()), '\0');
  if (H5Aread(handle.get(), type.get(), text.data()) < 0) return std::nullopt;
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

struct Hdf5Writer::Impl {
  explicit Impl(const std::filesystem::path& path) : target(path.string()), file(path) {
    silence_library();
    const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18);
    const Handle options = without_dates(H5P_FILE_CREATE);
    Handle created(H5Fcreate(file.temporary_path().c_str(), H5F_ACC_TRUNC, options.get(), access.get()), H5Fclose);
    require(created.ok(), "cannot create the file");
    handle = std::make_unique<Handle>(std::move(created));
  }

  void require(bool ok, const std::string& what) const {
    if (!ok) throw IoError(what, target, "free some disk space or choose another place, then run again");
  }

  /// Creates the groups on the way to `object`, one by one: groups made implicitly would carry dates.
  void create_parents(const std::string& object) const {
    for (std::size_t slash = object.find('/', 1); slash != std::string::npos; slash = object.find('/', slash + 1)) {
      const std::string group = object.substr(0, slash);
      if (H5Lexists(handle->get(), group.c_str(), H5P_DEFAULT) > 0) continue;
      const Handle options = without_dates(H5P_GROUP_CREATE);
      const Handle created(H5Gcreate2(handle->get(), group.c_str(), H5P_DEFAULT, options.get(), H5P_DEFAULT), H5Gclose);
      require(created.ok(), "cannot create group " + group);
    }
  }

  std::string target;
  AtomicFile file;
  std::unique_ptr<Handle> handle;
};

Hdf5Writer::Hdf5Writer(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
Hdf5Writer::~Hdf5Writer() = default;

void Hdf5Writer::write(const std::string& dataset, const Tensor& tensor) {
  const hid_t type = native_type(tensor.dtype);
  OSCAR_CHECK(type >= 0);
  const std::vector<hsize_t> dims(tensor.shape.begin(), tensor.shape.end());
  const Handle space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose);
  impl_->create_parents(dataset);
  const Handle options = without_dates(H5P_DATASET_CREATE);
  const Handle set(
      H5Dcreate2(impl_->handle->get(), dataset.c_str(), type, space.get(), H5P_DEFAULT, options.get(), H5P_DEFAULT),
      H5Dclose);
  impl_->require(set.ok() && H5Dwrite(set.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.data.data()) >= 0,
                 "cannot write " + dataset);
}

void Hdf5Writer::attribute(const std::string& name, const std::string& text) {
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose), scalar(H5Screate(H5S_SCALAR), H5Sclose);
  H5Tset_size(type.get(), text.size());
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  const Handle attribute(
      H5Acreate2(impl_->handle->get(), name.c_str(), type.get(), scalar.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  impl_->require(attribute.ok() && H5Awrite(attribute.get(), type.get(), text.data()) >= 0,
                 "cannot write attribute " + name);
}

void Hdf5Writer::commit() {
  const bool flushed = H5Fflush(impl_->handle->get(), H5F_SCOPE_LOCAL) >= 0;
  impl_->handle->reset();
  impl_->require(flushed, "cannot write the file");
  impl_->file.commit();
}

}  // namespace oscar
