// SPDX-License-Identifier: MIT
#include "base/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <memory>
#include <thread>

namespace oscar {
namespace {

/// Cores of a machine, at most.
constexpr int kMostCores = 1 << 16;

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

}  // namespace

// std::thread::hardware_concurrency counts the machine's cores with some C libraries (glibc 2.36), and ours with
// others.
Cores usable_cores() {
  const std::unique_ptr<cpu_set_t, FreeSet> set(CPU_ALLOC(kMostCores));
  const std::size_t size = CPU_ALLOC_SIZE(kMostCores);
  if (set == nullptr || ::sched_getaffinity(0, size, set.get()) != 0) {
    return {static_cast<int>(std::max(1U, std::thread::hardware_concurrency())), ""};
  }
  Cores cores{CPU_COUNT_S(size, set.get()), ""};
  for (int core = 0; core < kMostCores; ++core) {
    if (!CPU_ISSET_S(core, size, set.get())) continue;
    int last = core;
    while (last + 1 < kMostCores && CPU_ISSET_S(last + 1, size, set.get())) ++last;
    cores.list += (cores.list.empty() ? "" : ",") + std::to_string(core);
    if (last > core) cores.list += "-" + std::to_string(last);
    core = last;
  }
  return cores;
}

}  // namespace oscar
