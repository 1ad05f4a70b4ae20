// SPDX-License-Identifier: MIT
// Which of how many processes this is, as the launcher's environment says: torchrun (RANK, WORLD_SIZE …), Open MPI's
// mpirun (OMPI_COMM_WORLD_*), mpiexec of MPICH and Intel MPI (PMI_*), Slurm's srun (SLURM_PROCID,
// SLURM_STEP_NUM_TASKS …).
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace oscar {

struct Place {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this machine
  /// Where the ranks meet.
  std::string host;
  int port = 0;
  /// torchrun's agent keeps the store there; else rank 0 does.
  bool has_store = false;
  /// Keys of a restarted job are not those of the one before.
  std::string job;
};

/// Value of an environment variable, or "".
using Environment = std::function<std::string(const std::string& name)>;
[[nodiscard]] std::string process_environment(const std::string& name);

/// Nothing if there is one process only. Throws UsageError for numbers that make no sense, or if the launcher does not
/// tell where the ranks can meet.
[[nodiscard]] std::optional<Place> find_place(const Environment& environment = process_environment);

}  // namespace oscar
