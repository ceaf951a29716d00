#pragma once
/// Where a run goes on: its newest sound checkpoint, or its start.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/run_directory.h>

namespace gradtile {

struct ResumePoint {
    std::optional<Checkpoint> checkpoint;  ///< empty: the run begins again
    std::filesystem::path path;            ///< the checkpoint's file
    std::vector<std::string> messages;  ///< one line for each newer file that is damaged, and for a restart
};

/// Finds it, and changes nothing in the directory.
///
/// metrics.jsonl announces every save that is safe on disk. When the newest announced file is not there (the
/// user removed it, its disk is not mounted), going on would silently train the lost steps again. Throws
/// Error then, unless `restart` says that the run goes on from what is there. A file that is there but
/// damaged is named instead, and the newest sound one taken; without a sound one, and without `restart`,
/// throws Error.
///
/// Throws Error when the newest sound checkpoint has another identity than the run, whatever `restart` says.
ResumePoint find_resume_point(const RunDirectory& run, bool restart);

/// The identity of the run that a checkpoint belongs to; empty for runs made before there were identities.
/// Throws Error "SOURCE: ..." when it is no text.
std::string run_identity_of(const Checkpoint& checkpoint, const std::string& source);

/// Key of the run's identity in a checkpoint's meta.
constexpr const char* run_identity_key = "run";

}  // namespace gradtile
