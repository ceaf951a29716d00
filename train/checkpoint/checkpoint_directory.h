#pragma once
/// One run's checkpoint files: step_00000042.h5 and so on, and best.h5, the checkpoint with the lowest
/// validation loss so far. Both may be main files, whose tensors are in parts
/// (step_00000042.part-0-of-2-...).
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/train/checkpoint/checkpoint.h>

namespace gradtile {

struct RetentionPolicy {
    std::int64_t keep_last = 2;   ///< how many of the newest checkpoints to keep, at least 1
    std::int64_t keep_every = 0;  ///< also keeps checkpoints whose step is a multiple of this number; 0: none
};

class CheckpointDirectory {
  public:
    /// Does not access the disk; save() creates the directory.
    explicit CheckpointDirectory(std::filesystem::path path, RetentionPolicy retention = {},
                                 FileSystem& fs = FileSystem::posix());

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path path_of(std::int64_t step) const;
    /// Returns the file that save() writes: the step's, or that of the part.
    std::filesystem::path path_of(const Checkpoint& checkpoint) const;
    std::filesystem::path best_path() const { return path_ / "best.h5"; }

    struct Entry {
        std::int64_t step;
        std::filesystem::path path;
    };
    /// Lists the step files by name, newest first, without best.h5. Does not open the files.
    std::vector<Entry> list() const;

    /// Returns whether the directory does not exist, or holds nothing but temporary files and parts of saves
    /// that were not finished.
    bool is_empty() const;

    struct Saved {
        std::string problem;   ///< this checkpoint's error; empty: no error
        bool is_best = false;  ///< best.h5 is this checkpoint
    };
    /// Writes a checkpoint (see write_checkpoint()). If `best`, links it as best.h5, too. Once the checkpoint
    /// is safe on disk, removes the checkpoints that the retention policy does not keep. Checkpoints from
    /// later steps, which exist when a run was resumed from an earlier step, are neither counted nor removed.
    /// Parts follow their main files: remove_unlisted_parts() removes them afterwards. A checkpoint that is a
    /// part itself is only written.
    /// Throws Error when the save fails; the older checkpoints are then unchanged. A failure after the
    /// checkpoint was safe is returned as a message.
    Saved save(const Checkpoint& checkpoint, bool best = false) const;

    struct Loaded {
        std::optional<Checkpoint> checkpoint;  ///< the newest sound checkpoint; empty when there is none
        std::filesystem::path path;            ///< the checkpoint's file
        std::vector<std::string> damaged;      ///< one line for each newer file that is damaged
    };
    /// Reads the files from the newest step downwards until one is sound. best.h5 counts as its step's
    /// checkpoint. A running process may save and remove files meanwhile.
    Loaded load_newest(ReadOptions options = {}) const;

    /// Returns what the main file lists about a part that save() has written.
    PartFile describe(const Checkpoint& part) const;
    /// Removes the parts that no main file lists. No save may be running. Throws Error, and removes nothing,
    /// if a main file cannot be read, because it may list some of them.
    void remove_unlisted_parts() const;

    /// Removes a killed process's temporary files, and the parts of its unfinished saves. The caller must
    /// hold the run's lock.
    void remove_temporaries() const;

  private:
    std::vector<std::string> names() const;
    std::vector<Entry> candidates(std::vector<std::string>& damaged) const;
    Loaded load_listed(const ReadOptions& options, bool& was_removed) const;
    void mark_best(const Checkpoint& checkpoint) const;
    void apply_retention(std::int64_t saved_step) const;

    std::filesystem::path path_;
    RetentionPolicy retention_;
    FileSystem* fs_;
};

}  // namespace gradtile
