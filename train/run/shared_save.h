#pragma once
/// SharedSave: saves to which every rank of a sharded run writes the part that it holds.
///
/// A rank writes its part as a SnapshotWriter writes a whole checkpoint, beside training. Once all ranks have
/// reported that their parts are durable, rank 0 writes the main file, which lists the parts. Until then a
/// reader sees nothing of the save, so a process that is killed at any moment leaves the older checkpoints.
/// If a part fails, the save fails, and rank 0 removes the other parts.
#include <optional>
#include <string>
#include <vector>

#include <gradtile/train/checkpoint/snapshot_writer.h>
#include <gradtile/train/parallel/process_group.h>

namespace gradtile {

class SharedSave {
  public:
    /// The references must stay valid.
    SharedSave(ProcessGroup& group, SnapshotWriter& writer) : group_(group), writer_(writer) {}

    // Collective: every rank calls the following functions, in the same order.
    /// Starts a save, once the previous one has ended. `part` has this rank's pieces. In rank 0 `main` is the
    /// checkpoint without tensors, and becomes the main file, which lists `tensors`.
    void start(Checkpoint part, Checkpoint main, std::vector<TensorInfo> tensors, bool best);
    /// Rank 0 begins to write the main file if all parts are durable. Does not wait for the disk.
    void advance();
    /// Waits for the save. poll() then returns its result.
    void finish();

    /// Not collective: gives up a save whose main file is not being written yet, after the loss of a rank.
    /// Returns this save in rank 0.
    std::optional<SaveReport> abandon();

    /// Returns the saves that ended since the last call; those of rank 0 only.
    std::vector<SaveReport> poll();

  private:
    struct Pending {
        Checkpoint main;
        Checkpoint part;  // without tensors
        bool best = false;
        std::optional<SaveReport> written = {};  // the result of this rank's part, once it has ended
    };
    std::string status();
    void remove_parts(SaveReport& failed) const;
    void fail(SaveReport report);

    ProcessGroup& group_;
    SnapshotWriter& writer_;
    std::optional<Pending> pending_;  // while parts are written
    double part_seconds_ = 0.0;       // of this rank's part in the newest save
    std::vector<SaveReport> reports_;
};

/// Collective: throws Error in all ranks if one of them does not see what rank 0 writes to its `directory`,
/// which this function creates.
void require_shared_directory(ProcessGroup& group, const std::filesystem::path& directory);

}  // namespace gradtile
