// SPDX-License-Identifier: MIT
#include "ranks/place.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/errors.hpp"

namespace oscar {
namespace {

/// Names of the variables of one launcher.
struct Launcher {
  const char *rank, *size, *local_rank, *local_size, *job;
};

// In the script of a Slurm job SLURM_PROCID and SLURM_NTASKS are set too, although it is one process: only steps have a
// number of tasks of their own.
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_ID"}};

int number(const Environment& environment, const char* name, int otherwise) {
  const std::string text = environment(name);
  if (text.empty()) return otherwise;
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 0) return value;
  throw UsageError("cannot read the number \"" + text + "\"", name, "start the ranks with torchrun, mpirun or srun");
}

/// Of "4(x2),3": 4 on each of the first two machines, 3 on the third. machine: from 0.
int tasks_of_machine(const std::string& list, int machine) {
  const auto number_at = [&](std::size_t begin) {
    int value = 0;
    (void)std::from_chars(list.data() + begin, list.data() + list.size(), value);
    return value;
  };
  int tasks = 0;
  for (std::size_t begin = 0; begin < list.size() && machine >= 0;) {
    const std::size_t end = std::min(list.find(',', begin), list.size()), times = list.find("(x", begin);
    tasks = number_at(begin);
    machine -= times < end ? number_at(times + 2) : 1;
    begin = end + 1;
  }
  if (machine < 0 && tasks > 0) return tasks;
  throw UsageError("cannot read the number of tasks on this machine in \"" + list + "\"",
                   "SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID", "start the ranks with torchrun, mpirun or srun");
}

/// Ranks on this machine.
int local_size_of(const Launcher& launcher, const Environment& environment) {
  const std::string list = environment(launcher.local_size);
  if (list.find_first_of("(,") == std::string::npos) return number(environment, launcher.local_size, 1);
  return tasks_of_machine(list, number(environment, "SLURM_NODEID", 0));
}

/// The first machine of "node[07-12,20],other".
std::string first_host(const std::string& list) {
  const std::size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

/// A port that all processes of a job agree on, and others hardly ever.
int port_of(const std::string& job) {
  unsigned hash = 2166136261U;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return 20000 + static_cast<int>(hash % 10000);
}

void find_meeting_point(const Environment& environment, Place& place) {
  place.host = environment("MASTER_ADDR");
  place.port = number(environment, "MASTER_PORT", 0);
  const std::string slurm_job = environment("SLURM_JOB_ID");
  if (place.host.empty()) {
    place.host = place.local_size == place.size ? "127.0.0.1" : first_host(environment("SLURM_STEP_NODELIST"));
  }
  if (place.port == 0 && !(slurm_job + place.job).empty()) place.port = port_of(slurm_job + " " + place.job);
  if (!place.host.empty() && place.port > 0 && place.port < 65536) return;
  throw UsageError("the launcher does not say where the ranks can meet", "MASTER_ADDR, MASTER_PORT",
                   "set them to rank 0's machine and a free port of it (mpirun -x, mpiexec -genv)");
}

}  // namespace

std::string process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

std::optional<Place> find_place(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    if (environment(launcher.rank).empty() || environment(launcher.size).empty()) continue;
    Place place;
    place.rank = number(environment, launcher.rank, 0), place.size = number(environment, launcher.size, 1);
    if (place.size <= 1) continue;
    place.local_rank = number(environment, launcher.local_rank, 0);
    place.local_size = local_size_of(launcher, environment);
    place.job = environment(launcher.job);
    if (place.rank >= place.size || place.local_rank >= place.local_size || place.local_size > place.size) {
      throw UsageError("rank " + std::to_string(place.rank) + " of " + std::to_string(place.size) + ", and " +
                           std::to_string(place.local_rank) + " of " + std::to_string(place.local_size) +
                           " on this machine, is no place",
                       std::string(launcher.rank) + ", " + launcher.local_rank,
                       "start the ranks with torchrun, mpirun or srun");
    }
    place.has_store = environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
    find_meeting_point(environment, place);
    return place;
  }
  return std::nullopt;
}

}  // namespace oscar
