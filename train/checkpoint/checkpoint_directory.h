#pragma once
/// The checkpoints of one run: step_00000042.h5 and so on, and best.h5, which has the lowest validation loss
/// so far.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/train/checkpoint/checkpoint.h>

namespace gradtile {

struct RetentionPolicy {
    std::int64_t keep_last = 2;   ///< newest checkpoints kept, at least 1
    std::int64_t keep_every = 0;  ///< steps that are a multiple are kept for good; 0: none
};

class CheckpointDirectory {
  public:
    /// Does not touch the disk; save() creates the directory.
    explicit CheckpointDirectory(std::filesystem::path path, RetentionPolicy retention = {},
                                 FileSystem& fs = FileSystem::posix());

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path path_of(std::int64_t step) const;
    std::filesystem::path best_path() const { return path_ / "best.h5"; }

    struct Entry {
        std::int64_t step;
        std::filesystem::path path;
    };
    /// The step files by name, newest first; best.h5 is not among them. Nothing is opened.
    std::vector<Entry> list() const;

    /// Writes a checkpoint (see write_checkpoint()), names it best.h5 too when `best`, and when it is safe on
    /// disk removes what the policy does not keep. Files of later steps (left by a run that was resumed from
    /// before them) neither count nor are touched. Throws Error when the save failed; older checkpoints are
    /// then as they were. What fails after the checkpoint was safe is returned as a message instead.
    struct Saved {
        std::string problem;   ///< empty: none
        bool is_best = false;  ///< best.h5 is this checkpoint
    };
    Saved save(const Checkpoint& checkpoint, bool best = false) const;

    struct Loaded {
        std::optional<Checkpoint> checkpoint;  ///< the newest sound one; empty when there is none
        std::filesystem::path path;            ///< its file
        std::vector<std::string> damaged;      ///< one line for every newer file that is not sound
    };
    /// Tries the files from the newest step on until one is sound; best.h5 takes part with its step.
    Loaded load_newest(ReadOptions options = {}) const;

    /// Removes temporaries that a killed process left behind. Only for the holder of the run's lock.
    void remove_temporaries() const;

  private:
    std::vector<std::string> names() const;
    std::vector<Entry> candidates(std::vector<std::string>& damaged) const;
    void mark_best(const Checkpoint& checkpoint) const;
    void apply_retention(std::int64_t saved_step) const;

    std::filesystem::path path_;
    RetentionPolicy retention_;
    FileSystem* fs_;
};

}  // namespace gradtile
