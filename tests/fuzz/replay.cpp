// SPDX-License-Identifier: MIT
// Runs a fuzz target over the files of folders, and over each of them cut and with a byte changed here and there: the
// ordinary test of what libFuzzer searches at random.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kVariants = 60;

Bytes read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void run(const Bytes& bytes) { (void)LLVMFuzzerTestOneInput(bytes.data(), bytes.size()); }

void run_variants(const Bytes& seed) {
  run(seed);
  const std::size_t step = seed.size() / kVariants + 1;
  for (std::size_t i = 0; i < seed.size(); i += step) {
    run({seed.begin(), seed.begin() + static_cast<std::ptrdiff_t>(i)});
    Bytes changed = seed;
    changed[i] = static_cast<std::uint8_t>(changed[i] ^ (i % 2 == 0 ? 0xff : 0x01));
    run(changed);
  }
}

}  // namespace

int main(int count, char** folders) {
  int files = 0;
  for (int i = 1; i < count; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(folders[i])) {
      run_variants(read(entry.path()));
      ++files;
    }
  }
  std::printf("%d seeds\n", files);
  return files > 0 ? 0 : 1;
}
