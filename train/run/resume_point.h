#pragma once
/// Where a run resumes: at its newest sound checkpoint, or at its start.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/run/run_directory.h>

namespace gradtile {

struct ResumePoint {
    std::optional<Checkpoint> checkpoint;  ///< empty: the run starts again from step 0
    std::filesystem::path path;            ///< the checkpoint's file
    /// One line for each newer file that is damaged, and one when later steps than the checkpoint's are lost.
    std::vector<std::string> messages;
};

/// Finds the resume point. Changes nothing in the directory.
///
/// metrics.jsonl announces every save that is safe on disk. If the newest announced checkpoint's file is
/// missing (the user removed it, or its disk is not mounted), resuming would silently train the lost steps
/// again. So the function throws Error, unless `restart` allows the run to continue without that file. A file
/// that exists but is damaged is named in `messages`, and the newest sound file is used. If there is no sound
/// file, although there are damaged files or metrics.jsonl records a save that failed, the function throws
/// Error, unless `restart` is set. A run that ended before its first save starts again, with a message.
///
/// Throws Error when the newest sound checkpoint has another identity than the run, or when `checkpoints` is
/// a link to a directory without a sound checkpoint, regardless of `restart`.
ResumePoint find_resume_point(const RunDirectory& run, bool restart);

/// Returns the identity of the run that a checkpoint belongs to; empty if a version without identities wrote
/// the run. Throws Error "SOURCE: ..." when the value is not a text.
std::string run_identity_of(const Checkpoint& checkpoint, const std::string& source);

/// The key for the run's identity in a checkpoint's meta.
constexpr const char* run_identity_key = "run";
/// The key for the description of imported weights in a checkpoint's meta. Such a checkpoint has no training
/// state, so find_resume_point() refuses it.
constexpr const char* imported_key = "imported";

}  // namespace gradtile
