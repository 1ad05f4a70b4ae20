// SPDX-License-Identifier: MIT
// What can go wrong, as types. Every error says what failed, where, and what the user can do about it.
// Only main() turns an error into text and an exit code; nothing below it prints or exits.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace oscar {

/// Base of all errors that a user can cause or cure.
class Error : public std::runtime_error {
 public:
  /// what: one clause, no full stop. where: file, layer, head, option … (may be empty). remedy: an imperative (may be
  /// empty).
  Error(const std::string& what, std::string where, std::string remedy)
      : std::runtime_error(what), where_(std::move(where)), remedy_(std::move(remedy)) {}

  [[nodiscard]] const std::string& where() const noexcept { return where_; }
  [[nodiscard]] const std::string& remedy() const noexcept { return remedy_; }

 private:
  std::string where_;
  std::string remedy_;
};

/// The command line asks for something that does not exist or does not fit together (exit code 2).
struct UsageError : Error {
  using Error::Error;
};
/// A file is missing, truncated, malformed, or holds values that cannot be used (exit code 1).
struct DataError : Error {
  using Error::Error;
};
/// The operating system refused a read, a write or a lock (exit code 1).
struct IoError : Error {
  using Error::Error;
};
/// An algorithm did not converge or left its domain (exit code 1).
struct NumericalError : Error {
  using Error::Error;
};
/// The chosen device, library or plug-in is not there (exit code 1).
struct BackendUnavailable : Error {
  using Error::Error;
};
/// A transfer failed (exit code 1).
struct TransportError : Error {
  using Error::Error;
};
/// SIGINT, SIGTERM or SIGHUP arrived (exit code 130).
struct Interrupted : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return "interrupted"; }
};

[[noreturn]] inline void check_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(std::string("internal error: ") + condition + " does not hold at " + file + ":" +
                         std::to_string(line));
}

}  // namespace oscar

/// States what the code itself guarantees; a failure is our bug, not the user's.
#define OSCAR_CHECK(condition)                                               \
  do {                                                                       \
    if (!(condition)) ::oscar::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
