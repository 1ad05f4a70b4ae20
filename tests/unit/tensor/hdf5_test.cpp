// SPDX-License-Identifier: MIT
#include "tensor/hdf5.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "base/files.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

const std::vector<float> kValues{1, 2, 3, 4, 5, 6};

void write_sample(const fs::path& path) {
  Hdf5Writer file(path);
  file.write("/layers/3/key/rotation", Tensor::from({2, 3}, std::span(kValues)));
  file.attribute("schema", "x.v1");
  file.commit();
}

}  // namespace

TEST_CASE("an HDF5 file gives back what was written") {
  const test::TemporaryFolder folder;
  write_sample(folder / "a.h5");

  const Hdf5Reader file(folder / "a.h5");

  const Tensor tensor = file.read("/layers/3/key/rotation");
  CHECK(tensor.shape == std::vector<std::int64_t>{2, 3});
  CHECK(tensor.to_doubles() == std::vector<double>{1, 2, 3, 4, 5, 6});
  CHECK(file.attribute("/", "schema") == "x.v1");
  CHECK(file.attribute_names("/") == std::vector<std::string>{"schema"});
  for (const char* object : {"/layers/3", "/none"}) CHECK_FALSE(file.attribute(object, "schema").has_value());
  CHECK(file.members("/layers") == std::vector<std::string>{"3"});
  CHECK(file.has("/layers/3/key"));
  CHECK_FALSE(file.has("/layers/4"));
}

TEST_CASE("the same content gives the same HDF5 bytes at another time") {
  const test::TemporaryFolder folder;
  write_sample(folder / "a.h5");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5 dates have a resolution of a second
  write_sample(folder / "b.h5");
  CHECK(read_text(folder / "a.h5") == read_text(folder / "b.h5"));
}

TEST_CASE("bad HDF5 files are errors that say where") {
  const test::TemporaryFolder folder;
  write_sample(folder / "a.h5");
  const std::string bytes = read_text(folder / "a.h5");
  write_file(folder / "cut.h5", bytes.substr(0, bytes.size() / 2));

  CHECK_ERROR(Hdf5Reader(folder / "cut.h5"), DataError, "truncated");
  CHECK_ERROR(Hdf5Reader(folder / "none.h5"), DataError, "none.h5");
  CHECK_ERROR(Hdf5Reader(folder / "a.h5").read("/layers/9"), DataError, "/layers/9");
}

TEST_CASE("an HDF5 file that is not committed leaves nothing") {
  const test::TemporaryFolder folder;
  {
    Hdf5Writer file(folder / "a.h5");
    file.attribute("x", "1");
  }
  CHECK(list_files(folder.path()).empty());
}

}  // namespace oscar
