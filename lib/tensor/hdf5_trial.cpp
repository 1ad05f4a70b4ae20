// SPDX-License-Identifier: MIT
#include "tensor/hdf5_trial.hpp"

#include "base/errors.hpp"
#include "base/trial.hpp"
#include "tensor/hdf5.hpp"

namespace oscar {
namespace {

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

}  // namespace

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

}  // namespace oscar
