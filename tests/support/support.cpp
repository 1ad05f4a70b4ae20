// SPDX-License-Identifier: MIT
#include "support/support.hpp"

#include <stdlib.h>

#include <cstdio>
#include <cstdlib>

namespace oscar::test {

namespace fs = std::filesystem;

namespace {
bool skipped = false;

fs::path shared_path(const std::string& name) {
  const char* folder = std::getenv("OSCAR_SHARED");
  return fs::path(folder != nullptr ? folder : OSCAR_SHARED_DATA) / name;
}
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
  const char* folder = std::getenv("OSCAR_TEST_DATA");
  fs::path path = fs::path(folder != nullptr ? folder : OSCAR_TEST_DATA) / name;
  REQUIRE_MESSAGE(fs::exists(path), path.string());
  return path;
}

std::optional<fs::path> shared_data(const std::string& name) {
  fs::path path = shared_path(name);
  if (fs::exists(path)) return path;
  skip_case("needs the reference data " + name);
  return std::nullopt;
}

std::vector<fs::path> published_fits() {
  std::vector<fs::path> folders{data("reference-fit")};
  if (fs::path whole = shared_path("golden/reference-fit"); fs::exists(whole)) folders.push_back(std::move(whole));
  return folders;
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
