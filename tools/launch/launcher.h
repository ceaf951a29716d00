#pragma once
/// The parent process of `gradtile train --gpus N`, `--processes N` and `--restarts K`. The launcher starts
/// the processes that train, forwards signals, kills processes that hang after another's failure, replaces
/// lost ranks of a run that goes on without them, and restarts a run that failed. It does not train itself.
#include <filesystem>
#include <string>
#include <vector>

namespace gradtile::cli {

struct Launch {
    int processes = 1;
    int restarts = 0;
    bool replaces_lost_ranks = false;  ///< see launcher_link.h
    double timeout = 300.0;  ///< seconds after which several processes that are all stopped are killed
    /// The arguments after the program's name: for the first start, and for a restart that finds a run in
    /// `directory`.
    std::vector<std::string> arguments = {}, resume_arguments = {};
    std::filesystem::path directory = {};  ///< the run's directory; empty: the run saves nothing
    bool resumes = false;                  ///< the first start resumes the run in `directory`
};

/// With replaces_lost_ranks, a process that a signal ended, or that the others report as hanging, is replaced
/// once all others have reported the loss; then the run ends only if that happens several times without a
/// step between. A process that ends with an error, or before the others train, still ends the run.
///
/// Returns when all processes have ended: 0 when each returned 0, otherwise the first failure's exit code
/// (128 + the signal, for a process killed by a signal).
///
/// SIGTERM, SIGINT, SIGHUP and SIGUSR1 are forwarded as SIGUSR1: all processes finish the same step and save.
/// A second signal (except SIGHUP) kills them. Processes that are all stopped cannot notice each other; the
/// launcher kills them. A signal that this process was started to ignore is not
/// forwarded. The children start with no signal blocked.
///
/// The children have torchrun's environment variables, and each start creates a new GRADTILE_RUN_KEY.
int launch(const Launch& launch);

/// `arguments` without `flags` and their values.
std::vector<std::string> without_flags(const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& flags);

/// Whether this process was started by launch().
bool has_launcher();

}  // namespace gradtile::cli
