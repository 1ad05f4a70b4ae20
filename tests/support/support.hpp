// SPDX-License-Identifier: MIT
// What tests share: folders that clean up after themselves, the project's fixtures, and the reference data that only
// some machines have.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/status.hpp"

namespace oscar::test {

/// A fresh folder, removed with everything in it by the destructor.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// A file of the project's own fixtures, tests/data/<name>, or of those in $OSCAR_TEST_DATA.
[[nodiscard]] std::filesystem::path data(const std::string& name);

/// A path in the reference data beside the checkout (or in $OSCAR_SHARED); nullopt, and a line that makes the case
/// count as skipped, if this machine does not have it.
[[nodiscard]] std::optional<std::filesystem::path> shared_data(const std::string& name);

/// Folders with a dump, and what the published fitter and an independent numpy implementation make of it: one layer,
/// which is among the fixtures, and all layers where this machine has the reference data.
[[nodiscard]] std::vector<std::filesystem::path> published_fits();

/// Keeps what it is told, a line each.
struct HeardStatus : Status {
  std::string text;
  void notice(const std::string& line) override { text += line + "\n"; }
  void warning(const std::string& line) override { text += line + "\n"; }
};

/// Prints why, and makes the case count as skipped.
void skip_case(const std::string& reason);

/// True once skip_case() was called, as shared_data() does.
[[nodiscard]] bool any_case_skipped();

/// The whole text of an error as the user would see it: what, where, remedy.
[[nodiscard]] std::string text_of(const Error& error);

}  // namespace oscar::test

/// Checks that `expression` throws `type` and that what the user sees contains `fragment`.
#define CHECK_ERROR(expression, type, fragment)                      \
  do {                                                               \
    std::string seen_ = "nothing was thrown";                        \
    try {                                                            \
      (void)(expression);                                            \
    } catch (const type& error_) {                                   \
      seen_ = ::oscar::test::text_of(error_);                        \
    }                                                                \
    CHECK_MESSAGE(seen_.find(fragment) != std::string::npos, seen_); \
  } while (false)
