// SPDX-License-Identifier: MIT
#include <algorithm>

#include "base/atomic_file.hpp"
#include "base/check.hpp"
#include "base/errors.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/hdf5_library.hpp"

namespace oscar {
namespace {

/// Properties of a new object without creation dates: the same content gives the same bytes, whenever it is written.
Handle without_dates(hid_t property_class) {
  Handle options(H5Pcreate(property_class), H5Pclose);
  H5Pset_obj_track_times(options.get(), false);
  return options;
}

Handle string_type(std::size_t size) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), std::max<std::size_t>(size, 1));
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

}  // namespace

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
      create_group(object.substr(0, slash));
    }
  }

  void create_group(const std::string& group) const {
    if (group == "/" || H5Lexists(handle->get(), group.c_str(), H5P_DEFAULT) > 0) return;
    const Handle options = without_dates(H5P_GROUP_CREATE);
    const Handle created(H5Gcreate2(handle->get(), group.c_str(), H5P_DEFAULT, options.get(), H5P_DEFAULT), H5Gclose);
    require(created.ok(), "cannot create group " + group);
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

void Hdf5Writer::attribute(const std::string& object, const std::string& name, const Hdf5Attribute& value) {
  impl_->create_parents(object);
  impl_->create_group(object);
  const Handle target(H5Oopen(impl_->handle->get(), object.c_str(), H5P_DEFAULT), H5Oclose);
  const auto put = [&](hid_t type, const Handle& space, const void* data) {
    const Handle attribute(H5Acreate2(target.get(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                           H5Aclose);
    impl_->require(attribute.ok() && H5Awrite(attribute.get(), type, data) >= 0, "cannot write attribute " + name);
  };
  const Handle scalar(H5Screate(H5S_SCALAR), H5Sclose);
  if (const auto* number = std::get_if<std::int64_t>(&value)) put(H5T_NATIVE_INT64, scalar, number);
  if (const auto* number = std::get_if<double>(&value)) put(H5T_NATIVE_DOUBLE, scalar, number);
  if (const auto* text = std::get_if<std::string>(&value)) {
    put(string_type(text->size()).get(), scalar, text->empty() ? "" : text->data());
  }
  if (const auto* list = std::get_if<std::vector<double>>(&value)) {
    const hsize_t size = list->size();
    put(H5T_NATIVE_DOUBLE, Handle(H5Screate_simple(1, &size, nullptr), H5Sclose), list->data());
  }
}

void Hdf5Writer::commit() {
  const bool flushed = H5Fflush(impl_->handle->get(), H5F_SCOPE_LOCAL) >= 0;
  impl_->handle->reset();
  impl_->require(flushed, "cannot write the file");
  impl_->file.commit();
}

}  // namespace oscar
