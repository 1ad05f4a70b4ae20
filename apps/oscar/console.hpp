// SPDX-License-Identifier: MIT
// The terminal: talk and progress on stderr, tables as text. Progress is drawn on a terminal, and told by lines of
// plain text elsewhere.
#pragma once

#include <chrono>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.hpp"
#include "base/status.hpp"

namespace oscar {

/// When progress is worth a line in a log, where nothing can be drawn over.
class ProgressLines {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// every_end: the end of each stage is told, else only of those that took long enough to be told before.
  ProgressLines(std::chrono::seconds interval, bool every_end, Time now)
      : interval_(interval), every_end_(every_end), last_(now) {}

  /// Whether to tell that `stage` stands where it does, and at its end if `end` is set. Takes a true answer as told.
  [[nodiscard]] bool is_due(const std::string& stage, bool end, Time now) {
    if (stage != stage_) stage_ = stage, told_ = false;
    const bool due = now - last_ >= interval_ || (end && (every_end_ || told_));
    if (!due) return false;
    last_ = now;
    told_ = !end;
    return true;
  }

 private:
  std::chrono::seconds interval_;
  bool every_end_;
  Time last_;
  std::string stage_;
  bool told_ = false;
};

/// Draws what the library reports.
class Console : public Status {
 public:
  struct Options {
    bool quiet = false, verbose = false;
    /// auto: a bar on a terminal, elsewhere a line every 30 seconds, and where a stage that was told of ends; plain:
    /// lines every 5 seconds and where any stage ends; none.
    std::string progress = "auto";
  };
  explicit Console(Options options);
  ~Console() override;

  void progress(const std::string& stage, std::int64_t done, std::int64_t total) override;
  /// A bar, the layer and its tokens, and how fast the text passes the whole model.
  void model_progress(const ModelProgress& at) override;
  void notice(const std::string& text) override;
  void warning(const std::string& text) override;
  void detail(const std::string& text) override;

 private:
  /// Where work stood when it began, as far as this terminal knows.
  struct Pace {
    std::string stage;
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    std::uint64_t first_bytes = 0;
    std::chrono::steady_clock::time_point started{};
  };

  void print_line(const std::string& text);
  void print_unlocked(const std::string& text);
  /// Whether to draw: not too often, but the end always. Notes where work begins.
  [[nodiscard]] bool is_due(Pace& pace, const std::string& stage, std::int64_t done, std::int64_t to_do,
                            std::uint64_t bytes, std::optional<ProgressLines>& lines);
  void draw(const std::string& line, bool last);
  void clear_progress();

  Options options_;
  bool draws_ = false;                                // a bar
  std::optional<ProgressLines> lines_, model_lines_;  // instead of a bar
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  bool drawn_ = false;
  Pace pace_, model_;  // a model runs beside what uses it
  std::chrono::steady_clock::time_point last_draw_{};
};

/// "oscar: error: what\n  where: …\n  try: …\n" on stderr.
void print_error(const Error& error);

/// Results, on stdout. Control characters, which files of others can hold, are escaped; JSON stays the same document.
/// Throws IoError.
void print(std::string_view text);

/// Columns padded to their widest cell; the first left-aligned, the others right-aligned. rows[0] is the header.
[[nodiscard]] std::string format_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace oscar
