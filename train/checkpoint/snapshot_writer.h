#pragma once
/// Saves checkpoints during training. A step waits only until the state is copied once in memory (in GPU
/// memory if the state is there); a separate thread, started for each save, does the other work.
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include <gradtile/core/allocator.h>
#include <gradtile/core/context.h>
#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/checkpoint/device_snapshot.h>

namespace gradtile {

struct SaveReport {
    std::int64_t step = 0;
    std::filesystem::path path;
    bool saved = false;    ///< the checkpoint is safe on disk: written, verified, committed
    bool best = false;     ///< best.h5 was requested
    bool is_best = false;  ///< best.h5 is this checkpoint
    std::string message;   ///< one line about a failure, in the save or after it; empty: none
    std::uint64_t bytes = 0;
    double copy_seconds = 0;   ///< time that training waited for the copy, on the host or on its stream
    double write_seconds = 0;  ///< time that the thread needed for the rest
};

/// All members must be called from one thread, which gets the results by calling poll(). A failed save is
/// such a result; it affects neither training nor older checkpoints.
///
/// save() waits while the previous save is still being written. So no save is skipped, and the state is
/// copied once instead of queued.
class SnapshotWriter {
  public:
    /// Where the state is copied first: the memory of the device that trains, or page-locked host memory,
    /// for which training waits longer if the device is a GPU.
    enum class FirstCopy { device, host };
    /// Copies on ctx's threads; GPU tensors are copied in ctx's stream order.
    SnapshotWriter(CheckpointDirectory directory, const Context& ctx,
                   FirstCopy first_copy = FirstCopy::device);
    /// Waits for a running save, except in a forked child, where its thread does not exist.
    ~SnapshotWriter();
    SnapshotWriter(const SnapshotWriter&) = delete;
    SnapshotWriter& operator=(const SnapshotWriter&) = delete;

    const CheckpointDirectory& directory() const { return directory_; }
    /// Returns whether this process was forked from the one that made the writer.
    bool is_in_forked_child() const;
    /// Allocates memory for checkpoints like this one, so that the first save does not wait for the
    /// allocation. Does not read the tensors' elements.
    void reserve(const Checkpoint& like);
    /// Copies the state and starts to save it. The state, except constant_params, may change once this
    /// function returns. `best` also links the checkpoint as best.h5. Memory and file errors do not throw
    /// here; poll() reports them.
    void save(const Checkpoint& live, bool best = false);
    /// Starts to save the state without a copy. The tensors are on the host and must not change before wait()
    /// returns.
    void save_in_place(Checkpoint checkpoint, bool best = false);
    /// Returns the results from all saves that ended since the last call, oldest first.
    std::vector<SaveReport> poll();
    /// Waits for the running save. poll() then returns all saves' results.
    void wait();

  private:
    struct Job {
        Checkpoint checkpoint;
        std::uint64_t device_bytes = 0;  // bytes of staging memory that are copied from the GPU
        SaveReport report;
    };
    SaveReport report_of(const Checkpoint& checkpoint, bool best) const;
    void start_writing(Job job);
    void end_save();
    void write(Job& job) const;
    struct Plan;
    /// Assigns the checkpoint's tensors places in staging memory, contiguous, and lists the copies.
    Plan plan_staging(const Checkpoint& live);
    void grow_staging(std::uint64_t bytes);
    /// The memory that the device writes to; null: it copies within its own.
    std::byte* host_of_first_copy() const;

    CheckpointDirectory directory_;
    Context ctx_;
    FirstCopy first_copy_;
    std::shared_ptr<Buffer> staging_;
    std::unique_ptr<DeviceSnapshot> on_device_;  // only if ctx's device is a GPU

    pid_t process_;  // that made the writer
    std::vector<SaveReport> reports_;
    struct RunningSave;
    std::unique_ptr<RunningSave> running_;  // null: every save has ended, and its report was taken
};

}  // namespace gradtile
