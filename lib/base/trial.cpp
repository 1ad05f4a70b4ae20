// SPDX-License-Identifier: MIT
#include "base/trial.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/errors.hpp"

namespace oscar {
namespace {

[[noreturn]] void run_and_exit(const std::function<void()>& task, unsigned seconds) {
  const rlimit no_core{0, 0};
  (void)::setrlimit(RLIMIT_CORE, &no_core);
  for (const int each : {SIGALRM, SIGSEGV, SIGBUS, SIGABRT}) (void)std::signal(each, SIG_DFL);
  (void)::alarm(seconds);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) (void)::dup2(nowhere, STDOUT_FILENO), (void)::dup2(nowhere, STDERR_FILENO);
  try {
    task();
  } catch (...) {
  }
  ::_exit(0);  // nothing of the parent's is closed or written twice
}

}  // namespace

bool survives(const std::function<void()>& task, unsigned seconds) {
  const pid_t child = ::fork();
  if (child < 0) throw IoError("cannot start a process to try a file in", "fork", "end other programs, then run again");
  if (child == 0) run_and_exit(task, seconds);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace oscar
