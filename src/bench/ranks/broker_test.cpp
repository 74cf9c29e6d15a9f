#include "bench/ranks/broker.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace attnbench {
namespace {

using Variables = std::map<std::string, std::string>;

/// What launchers say, and nothing else of the kind, while it lives.
class Launched {
 public:
  explicit Launched(const Variables& variables) {
    for (const char* name :
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK",
          "PMI_SIZE", "PMI_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
          "SLURM_LOCALID"}) {
      const char* const value = std::getenv(name);
      before_[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Launched() {
    for (const auto& [name, value] : before_) {
      if (value) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

void expect_rank(const Variables& variables, const LaunchedRank& expected) {
  const Launched launched(variables);
  const LaunchedRank found = launched_rank();
  CHECK(found.rank == expected.rank);
  CHECK(found.size == expected.size);
  CHECK(found.local_rank == expected.local_rank);
}

}  // namespace

TEST_CASE("every launcher says which rank of a machine a process is") {
  expect_rank({}, {0, 1, 0});
  expect_rank({{"OMPI_COMM_WORLD_RANK", "5"},
               {"OMPI_COMM_WORLD_SIZE", "8"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
              {5, 8, 1});
  expect_rank({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "2"}}, {3, 4, 2});
  expect_rank({{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"}},
              {3, 4, 1});
}

TEST_CASE("srun --mpi=pmi2 gives the local rank in Slurm's words, mpirun in a job in its own") {
  expect_rank({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"SLURM_LOCALID", "3"}}, {3, 4, 3});
  expect_rank({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_LOCAL_RANK", "1"}}, {1, 2, 1});
  // The script of a job is task 0 of its machine.
  expect_rank(
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"SLURM_LOCALID", "0"}},
      {1, 2, 1});
}

}  // namespace attnbench
