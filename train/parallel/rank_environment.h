#pragma once
/// This process's rank and world size, from the environment variables that mpirun, srun, torchrun or
/// `gradtile train --gpus` set.
#include <functional>
#include <string>

namespace gradtile {

struct RankEnvironment {
    int rank = 0;
    int size = 1;
    int local_rank = 0;         ///< rank among the processes on this host; selects the GPU
    int local_size = 1;         ///< process count on this host
    std::string launcher = {};  ///< "mpirun", "srun", "torchrun"; empty: a single process
    std::string address = {};   ///< host where rank 0 listens; empty: broadcast through MPI
    int port = 0;               ///< if 0, rank 0 chooses a port and broadcasts it through MPI
    std::string key = {};       ///< GRADTILE_RUN_KEY; empty: not set
};

/// Whether this process's variables say that all processes are on this host.
bool is_single_host(const RankEnvironment& environment);
/// Throws Error unless a key is set or can be distributed: through MPI, or through a file when all processes
/// are on this host. Without a key, any program that reaches the port could pose as a rank.
void require_key(const RankEnvironment& environment);

/// Looks a variable up; nullptr when it is not set.
using EnvironmentLookup = std::function<const char*(const char* name)>;

/// Reads the launcher's variables. Throws Error (one line with the variable, its value and the expected
/// value) when a value is not a number, a rank is outside the world, rank or world size is set without the
/// other, or two launchers contradict each other.
RankEnvironment read_rank_environment(const EnvironmentLookup& lookup);
/// Reads this process's environment.
RankEnvironment read_rank_environment();

}  // namespace gradtile
