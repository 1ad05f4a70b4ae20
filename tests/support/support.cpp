// SPDX-License-Identifier: MIT
#include "support/support.hpp"

#include <stdlib.h>

#include <cstdio>
#include <cstdlib>

namespace oscar::test {

namespace fs = std::filesystem;

namespace {
bool skipped = false;
}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "oscar-test-XXXXXX").string();
  REQUIRE(::mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path data(const std::string& name) {
  fs::path path = fs::path(OSCAR_TEST_DATA) / name;
  REQUIRE_MESSAGE(fs::exists(path), path.string());
  return path;
}

std::optional<fs::path> shared_data(const std::string& name) {
  const char* folder = std::getenv("OSCAR_SHARED");
  fs::path path = fs::path(folder != nullptr ? folder : OSCAR_SHARED_DATA) / name;
  if (fs::exists(path)) return path;
  skip_case("needs the reference data " + name);
  return std::nullopt;
}

void skip_case(const std::string& reason) {
  skipped = true;
  std::printf("skipped: %s\n", reason.c_str());
}

bool any_case_skipped() { return skipped; }

std::string text_of(const Error& error) {
  return std::string(error.what()) + " | " + error.where() + " | " + error.remedy();
}

}  // namespace oscar::test
