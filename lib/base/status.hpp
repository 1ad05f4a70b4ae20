// SPDX-License-Identifier: MIT
// The library reports events; the application decides what a human sees. Also the one place that knows about
// interruption, and how long something took.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/errors.hpp"

namespace oscar {

/// How far a model has come that takes a text through its layers.
struct ModelProgress {
  std::int64_t tokens = 0;  // of the text
  int layers = 0;           // to run
  /// Counts tokens times layers. In a layer with experts, what comes before those is a half.
  std::int64_t done = 0;
  std::uint64_t bytes = 0;  // of weights read so far

  [[nodiscard]] std::int64_t to_do() const { return tokens * layers - done; }
};

/// Receives what a long operation has to say. All methods may be called from any thread; the default ignores
/// everything.
class Status {
 public:
  virtual ~Status() = default;
  /// A part of the work, named `stage`, stands at `done` of `total` steps.
  virtual void progress(const std::string& stage, std::int64_t done, std::int64_t total) {
    (void)stage, (void)done, (void)total;
  }
  /// A model that takes a text through its layers stands at `at`.
  virtual void model_progress(const ModelProgress& at) { (void)at; }
  /// Something the user should know although nothing is wrong, for example a chunk that was left out.
  virtual void notice(const std::string& text) { (void)text; }
  /// Something that may make the result less good than the user believes.
  virtual void warning(const std::string& text) { (void)text; }
  /// Detail for --verbose.
  virtual void detail(const std::string& text) { (void)text; }
};

/// Makes SIGINT, SIGTERM and SIGHUP (unless it is ignored) set a flag instead of ending the process; a second signal
/// ends it at once. Makes a write beyond the limit of file sizes an error (EFBIG) instead of the end of the process.
void install_interrupt_handler();
/// True after SIGINT, SIGTERM or SIGHUP.
[[nodiscard]] bool interrupt_requested() noexcept;
/// Throws Interrupted after SIGINT, SIGTERM or SIGHUP. Called between units of work, never inside a file that is half
/// written.
void throw_if_interrupted();

/// Ends work in the background that nobody waits for any more, such as a request that is under way when an error ends
/// the run: while it lives, throw_if_interrupted() in this thread also throws, Interrupted, once `stop` is true. Of
/// scopes inside each other the innermost counts.
class StopScope {
 public:
  /// stop: must outlive the scope; any thread may set it.
  explicit StopScope(const std::atomic<bool>& stop) noexcept;
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  const std::atomic<bool>* outer_;
};

/// Wall time since `start`.
[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace oscar
