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
  std::vector<Bytes> seeds;
  for (int i = 1; i < count; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(folders[i])) seeds.push_back(read(entry.path()));
  }
  for (const Bytes& seed : seeds) run(seed);
  std::printf("%zu seeds, of which readers took %d\n", seeds.size(), oscar::fuzz::taken);
  if (oscar::fuzz::taken == 0) return 1;  // nothing would be searched
  for (const Bytes& seed : seeds) run_variants(seed);
  return 0;
}
