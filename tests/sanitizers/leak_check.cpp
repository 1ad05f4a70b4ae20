// SPDX-License-Identifier: MIT
// leak_check PLUGIN: ends while threads have values of the plug-in (scripts/cmake/sanitizer_options.cpp says why). What
// only such a value points to is no leak. LeakSanitizer ends the program with a status of its own if it fails.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <latch>
#include <thread>

int main(int argc, char** argv) {
  constexpr int kThreads = 64;
  void* library = argc == 2 ? ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  void* symbol = library == nullptr ? nullptr : ::dlsym(library, "thread_values");
  if (symbol == nullptr) {
    std::fputs("usage: leak_check PLUGIN\n", stderr);
    return 2;
  }
  const auto thread_values = reinterpret_cast<void** (*)()>(symbol);
  static std::latch used(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    std::thread([thread_values] {
      thread_values()[0] = new int(0);
      used.count_down();
      while (true) ::pause();
    }).detach();
  }
  used.wait();
  return 0;
}
