// SPDX-License-Identifier: MIT
// Fingerprints of layers. How dumps of servers are read: tests/cli/dump, and what is wrong with them:
// tests/faults/drifted_dumps.py.
#include <doctest/doctest.h>

#include <array>

#include "base/files.hpp"
#include "dump/source.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

constexpr std::array kLayers{3, 11};

void write_layers(const fs::path& folder) {
  for (const int layer : kLayers) {
    const fs::path own = folder / ("layer_" + std::to_string(layer));
    for (const char* part : {"q", "k", "v"}) {
      fs::create_directories(own / part);
      write_file(own / part / "1.pt", std::string(5000, part[0]));
    }
  }
}

void put(const fs::path& file, std::size_t at, char value) {
  std::string content = read_text(file);
  content.at(at) = value;
  write_file(file, content);
}

}  // namespace

TEST_CASE("a layer's fingerprint is of all of its files' names, sizes and ends, and of no other layer's") {
  const test::TemporaryFolder folder;
  write_layers(folder.path());
  const auto prints = fingerprint_layers(folder.path(), kLayers);
  CHECK(prints.size() == 2);
  CHECK(prints.at(3).size() == 64);
  CHECK(prints.at(3) != prints.at(11));
  const fs::path changed = folder / "layer_11" / "v" / "1.pt";
  const auto changes = [&] {
    const auto now = fingerprint_layers(folder.path(), kLayers);
    CHECK(now.at(3) == prints.at(3));
    return now.at(11) != prints.at(11);
  };
  put(changed, 4999, 'x');
  CHECK(changes());
  put(changed, 4999, 'v');
  CHECK_FALSE(changes());
  write_file(changed, std::string(5001, 'v'));
  CHECK(changes());
  fs::rename(changed, folder / "layer_11" / "v" / "2.pt");
  CHECK(changes());
}

TEST_CASE("links to layers have the fingerprints of what they lead to") {
  const test::TemporaryFolder folder, links;
  write_layers(folder.path());
  for (const int layer : kLayers) {
    const std::string name = "layer_" + std::to_string(layer);
    fs::create_directory_symlink(folder / name, links / name);
  }
  fs::create_directory_symlink(".", links / "latest");  // of no layer: it is not followed
  CHECK(fingerprint_layers(links.path(), kLayers) == fingerprint_layers(folder.path(), kLayers));
}

TEST_CASE("layers of ranks have fingerprints too, and a layer without files has none") {
  const test::TemporaryFolder folder;
  write_file(folder / "layer_3_rank0.pt", "a");
  write_file(folder / "layer_3_rank1.pt", "b");
  write_file(folder / "notes.txt", "c");
  const auto prints = fingerprint_layers(folder.path(), kLayers);
  CHECK(prints.at(11).empty());
  write_file(folder / "layer_3_rank1.pt", "c");
  CHECK(fingerprint_layers(folder.path(), kLayers).at(3) != prints.at(3));
}

}  // namespace oscar
