#pragma once
/// `gradtile train --gpus N`, `--processes N` and `--restarts K`: the program as the parent of its own
/// processes. It starts them, passes signals on, ends those that outlive another's failure, and starts them
/// again. It takes no part in the training.
#include <filesystem>
#include <string>
#include <vector>

namespace gradtile::cli {

struct Launch {
    enum class Through {
        fork,    ///< our own children, told of each other as torchrun does
        mpirun,  ///< of the machine, so that MPI knows them
    };
    int processes = 1;
    Through through = Through::fork;
    int restarts = 0;
    /// What comes after the program's name: of the first start, and of one that finds a run in `directory`.
    std::vector<std::string> arguments = {}, resume_arguments = {};
    std::filesystem::path directory = {};  ///< the run's; empty: it saves nothing
    bool goes_on = false;                  ///< the first start goes on with the run in `directory`
};

/// Returns when all processes have ended: 0 when each returned 0, else what the first that failed did (128 +
/// the signal, when one has ended it).
///
/// SIGTERM, SIGINT, SIGHUP and SIGUSR1 are passed on as SIGUSR1, upon which all processes finish the same
/// step and save; a second one (but SIGHUP) ends them at once. A signal that this process was started to
/// ignore is not passed on. The children start with no signal blocked.
///
/// Each start makes a new secret (GRADTILE_RUN_KEY) for the processes that it forks; to those of mpirun, rank
/// 0 tells one through MPI.
int launch(const Launch& launch);

/// This process's own command line after the program's name, without those flags (of one value each).
std::vector<std::string> own_arguments_without(const std::vector<std::string>& flags);

}  // namespace gradtile::cli
