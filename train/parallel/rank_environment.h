#pragma once
/// Which process of how many this one is, as mpirun, srun, torchrun or `gradtile train --gpus` tell it
/// through environment variables.
#include <functional>
#include <string>

namespace gradtile {

struct RankEnvironment {
    int rank = 0;
    int size = 1;
    int local_rank = 0;  ///< among the processes of this host: chooses the GPU
    int local_size = 1;
    std::string launcher = {};  ///< "mpirun", "srun", "torchrun"; empty: a process of its own
    std::string address = {};   ///< host where rank 0 listens; empty: MPI tells it
    int port = 0;               ///< 0: rank 0 chooses one, and MPI tells it
    std::string key = {};       ///< the secret of the run, GRADTILE_RUN_KEY; empty: not set
};

/// Whether all processes are on this host, as far as this process is told.
bool are_all_here(const RankEnvironment& environment);
/// Throws Error unless the processes have a key or can be handed one: through MPI, or through a file when all
/// are on this host. Without a key any process that reaches the port could pass for a rank.
void require_key(const RankEnvironment& environment);

/// Looks a variable up; nullptr when it is not set.
using EnvironmentLookup = std::function<const char*(const char* name)>;

/// Reads what the launcher has set. Throws Error, one line that names the variable, its value and what was
/// expected, on a value that is no number, a rank outside the world, a rank without a world (or the other way
/// round), and launchers that contradict each other.
RankEnvironment read_rank_environment(const EnvironmentLookup& lookup);
/// The same from this process's environment.
RankEnvironment read_rank_environment();

}  // namespace gradtile
