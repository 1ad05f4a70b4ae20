// SPDX-License-Identifier: MIT
// The terminal: talk and progress on stderr, tables as text. Progress is drawn only on a terminal.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/status.hpp"

namespace oscar {

/// Draws what the library reports.
class Console : public Status {
 public:
  struct Options {
    bool quiet = false, verbose = false, progress = true;
  };
  explicit Console(Options options);
  ~Console() override;

  void progress(const std::string& stage, std::int64_t done, std::int64_t total) override;
  void notice(const std::string& text) override;
  void warning(const std::string& text) override;
  void detail(const std::string& text) override;

 private:
  void print_line(const std::string& text);
  void clear_progress();

  Options options_;
  std::mutex mutex_;
  bool drawn_ = false;
  std::string stage_;
  std::int64_t first_ = 0, done_ = 0;
  std::chrono::steady_clock::time_point last_draw_{}, started_{};
};

/// "oscar: error: what\n  where: …\n  try: …\n" on stderr.
void print_error(const Error& error);

/// Columns padded to their widest cell; the first left-aligned, the others right-aligned. rows[0] is the header.
[[nodiscard]] std::string format_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace oscar
