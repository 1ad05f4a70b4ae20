// SPDX-License-Identifier: MIT
#include "ranks/place.hpp"

#include <doctest/doctest.h>

#include <map>

#include "support/support.hpp"

namespace oscar {
namespace {

std::optional<Place> place_in(const std::map<std::string, std::string>& variables) {
  return find_place([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

}  // namespace

TEST_CASE("torchrun's variables tell the place, and that its agent keeps the store") {
  const auto place = place_in({{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node1"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  REQUIRE(place);
  CHECK(place->rank == 5);
  CHECK(place->size == 8);
  CHECK(place->local_rank == 1);
  CHECK(place->local_size == 4);
  CHECK(place->host == "node1");
  CHECK(place->port == 29500);
  CHECK(place->has_store);
  CHECK(place->job == "2");
}

TEST_CASE("a step of Slurm meets on its first machine, at a port of its own") {
  std::map<std::string, std::string> variables{{"SLURM_JOB_ID", "4711"}, {"SLURM_STEP_ID", "0"},
                                               {"SLURM_PROCID", "3"},    {"SLURM_STEP_NUM_TASKS", "8"},
                                               {"SLURM_LOCALID", "3"},   {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                                               {"SLURM_NODEID", "1"},    {"SLURM_STEP_NODELIST", "gpu[07-08]"}};
  const auto place = place_in(variables);
  REQUIRE(place);
  CHECK(place->rank == 3);
  CHECK(place->local_size == 4);
  CHECK(place->host == "gpu07");
  variables["SLURM_STEP_NODELIST"] = "a1,gpu[07-08]";
  CHECK(place_in(variables)->host == "a1");
  variables["SLURM_STEP_ID"] = "1";
  CHECK(place_in(variables)->port != place->port);
}

TEST_CASE("machines of a step may have different numbers of tasks") {
  std::map<std::string, std::string> variables{{"SLURM_JOB_ID", "4711"},
                                               {"SLURM_STEP_ID", "0"},
                                               {"SLURM_PROCID", "1"},
                                               {"SLURM_STEP_NUM_TASKS", "21"},
                                               {"SLURM_LOCALID", "1"},
                                               {"SLURM_STEP_TASKS_PER_NODE", "4(x2),2,11"},
                                               {"SLURM_STEP_NODELIST", "gpu[07-10]"}};
  int machine = 0;
  for (const int tasks : {4, 4, 2, 11}) {
    variables["SLURM_NODEID"] = std::to_string(machine++);
    CHECK(place_in(variables)->local_size == tasks);
  }
  variables["SLURM_NODEID"] = "4";
  CHECK_ERROR(place_in(variables), UsageError, "4(x2),2,11");
  variables["SLURM_STEP_TASKS_PER_NODE"] = "four(";
  variables["SLURM_NODEID"] = "0";
  CHECK_ERROR(place_in(variables), UsageError, "four(");
}

TEST_CASE("mpiexec of MPICH and of Intel MPI names no job, and needs a port") {
  std::map<std::string, std::string> variables{
      {"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}};
  CHECK_ERROR(place_in(variables), UsageError, "-genv");
  variables["MASTER_PORT"] = "29500";
  auto place = place_in(variables);
  CHECK(place->rank == 2);
  CHECK(place->local_rank == 2);
  CHECK(place->local_size == 4);
  CHECK(place->host == "127.0.0.1");
  CHECK(place->port == 29500);
  variables["MPI_LOCALRANKID"] = "0", variables["MPI_LOCALNRANKS"] = "2";
  CHECK_ERROR(place_in(variables), UsageError, "MASTER_ADDR");
  variables["MASTER_ADDR"] = "node1";
  CHECK(place_in(variables)->host == "node1");
}

TEST_CASE("the script of a Slurm job, and a launcher of one process, are no ranks") {
  CHECK_FALSE(place_in({{"SLURM_JOB_ID", "4711"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}));
  CHECK_FALSE(place_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  CHECK_FALSE(place_in({}));
}

TEST_CASE("mpirun needs an address where there are several machines") {
  std::map<std::string, std::string> variables{{"OMPI_COMM_WORLD_RANK", "1"},
                                               {"OMPI_COMM_WORLD_SIZE", "2"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                               {"PMIX_NAMESPACE", "prterun-node-123@1"}};
  CHECK(place_in(variables)->host == "127.0.0.1");
  variables["OMPI_COMM_WORLD_LOCAL_RANK"] = "0", variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  CHECK_ERROR(place_in(variables), UsageError, "MASTER_ADDR");
  variables["OMPI_COMM_WORLD_RANK"] = "2";
  CHECK_ERROR(place_in(variables), UsageError, "rank 2 of 2");
  variables["OMPI_COMM_WORLD_RANK"] = "two";
  CHECK_ERROR(place_in(variables), UsageError, "\"two\"");
}

}  // namespace oscar
