// SPDX-License-Identifier: MIT
#include "console.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/text.hpp"

namespace oscar {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBarWidth = 10;
constexpr auto kJudgeable = 250ms;  // of work, before which a rate says little

/// Where stderr is closed or full nobody hears it, and the work goes on.
void say(const std::string& text) { (void)std::fputs(text.c_str(), stderr); }

/// Number of terminal columns that UTF-8 text without wide characters takes.
std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

/// ", 1:05 left", once there is something to judge by.
std::string time_left(Clock::duration passed, std::int64_t done, std::int64_t to_do) {
  if (passed < kJudgeable || done <= 0 || to_do <= 0) return "";
  const double share = static_cast<double>(to_do) / static_cast<double>(done);
  const auto seconds = static_cast<std::int64_t>(std::chrono::duration<double>(passed).count() * share);
  return fmt::format(", {}:{:02} left", seconds / 60, seconds % 60);
}

}  // namespace

Console::Console(Options options) : options_(std::move(options)) {
  const bool plain = options_.progress == "plain";
  if (options_.quiet || options_.progress == "none") return;
  draws_ = !plain && ::isatty(STDERR_FILENO) == 1;
  if (!draws_) lines_.emplace(plain ? 5s : 30s, plain, started_);
  model_lines_ = lines_;
}

Console::~Console() { clear_progress(); }

void Console::progress(const std::string& stage, std::int64_t done, std::int64_t total) {
  const std::lock_guard lock(mutex_);
  if (options_.verbose && done >= total) {
    const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
    print_unlocked(fmt::format("{} {}/{} after {:.2f} s", stage, done, total, seconds));
  }
  if (!is_due(pace_, stage, done, total - done, 0, lines_)) return;
  const std::string left = time_left(last_draw_ - pace_.started, done - pace_.first, total - done);
  draw(fmt::format("{} {}/{}{}", stage, done, total, left), done >= total);
}

void Console::model_progress(const ModelProgress& at) {
  if (at.tokens <= 0) return;
  const std::lock_guard lock(mutex_);
  if (!is_due(model_, "", at.done, at.to_do(), at.bytes, model_lines_)) return;
  const auto passed = last_draw_ - model_.started;
  const std::int64_t layer = std::min<std::int64_t>(at.done / at.tokens, at.layers - 1);
  const std::size_t ticks = static_cast<std::size_t>(kBarWidth * at.done / (at.tokens * at.layers));
  std::string line = draws_ ? fmt::format("[{:.<{}}] ", std::string(ticks, '#'), kBarWidth) : "model: ";
  line += fmt::format("layer {}/{}, {}/{} tokens", layer + 1, at.layers, at.done - layer * at.tokens, at.tokens);
  if (passed >= kJudgeable) {
    const double seconds = std::chrono::duration<double>(passed).count();
    line +=
        fmt::format(", {:.0f} tokens/s, {:.1f} GB/s", static_cast<double>(at.done - model_.first) / at.layers / seconds,
                    static_cast<double>(at.bytes - model_.first_bytes) / 1e9 / seconds);
  }
  draw(line + time_left(passed, at.done - model_.first, at.to_do()), at.to_do() <= 0);
}

bool Console::is_due(Pace& pace, const std::string& stage, std::int64_t done, std::int64_t to_do, std::uint64_t bytes,
                     std::optional<ProgressLines>& lines) {
  const auto now = Clock::now();
  if (stage != pace.stage || done <= pace.first) pace = {stage, done, bytes, now};
  if (!draws_ && !(lines && lines->is_due(stage, to_do <= 0, now))) return false;
  if (draws_ && now - last_draw_ < 80ms && to_do > 0) return false;
  last_draw_ = now;
  return true;
}

void Console::draw(const std::string& line, bool last) {
  if (!draws_) return print_unlocked(line);
  struct winsize window {};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
  say("\r\x1b[K" + line.substr(0, known ? window.ws_col - 1U : std::string::npos));  // wrapped lines stay
  std::fflush(stderr);
  drawn_ = true;
  if (last) clear_progress();
}

void Console::notice(const std::string& text) {
  if (!options_.quiet) print_line(text);
}
void Console::warning(const std::string& text) { print_line("warning: " + text); }
void Console::detail(const std::string& text) {
  if (options_.verbose) print_line(text);
}

void Console::print_line(const std::string& text) {
  const std::lock_guard lock(mutex_);
  print_unlocked(text);
}

void Console::print_unlocked(const std::string& text) {
  clear_progress();
  say("oscar: " + printable_line(text) + "\n");
}

void Console::clear_progress() {
  if (drawn_) say("\r\x1b[K");
  drawn_ = false;
}

void print_error(const Error& error) {
  say("oscar: error: " + printable_line(error.what()) + "\n");
  if (!error.where().empty()) say("  where: " + printable_line(error.where()) + "\n");
  if (!error.remedy().empty()) say("  try:   " + printable_line(error.remedy()) + "\n");
}

void print(std::string_view text) {
  const std::string safe = printable(text);
  for (std::size_t done = 0; done < safe.size();) {
    const ssize_t count = ::write(STDOUT_FILENO, safe.data() + done, safe.size() - done);
    if (count < 0 && errno != EINTR) throw IoError("cannot write the result", "stdout", "check where stdout goes");
    done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    if (done < safe.size()) throw_if_interrupted();  // nobody reads the pipe
  }
}

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - display_width(row[i]), ' ');
      if (i == 0) {
        text += row[i] + (row.size() > 1 ? padding : "");
      } else {
        text += "  " + padding + row[i];
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace oscar
