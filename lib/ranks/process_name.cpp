// SPDX-License-Identifier: MIT
#include "ranks/process_name.hpp"

#include <unistd.h>

#include <fstream>

#include "base/cores.hpp"

namespace oscar {

std::string name_of_process(int rank) {
  char host[256] = "";
  (void)::gethostname(host, sizeof host - 1);
  return "rank " + std::to_string(rank) + " (" + host + ", process " + std::to_string(::getpid()) + ")";
}

std::string name_of_cores() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return boot + "/" + usable_cores().list;
}

}  // namespace oscar
