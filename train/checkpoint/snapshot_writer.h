#pragma once
/// Saves checkpoints beside training: the step waits for one copy of the state in memory (that of the GPU
/// where the state is there), a thread of its own does the rest.
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gradtile/core/allocator.h>
#include <gradtile/core/context.h>
#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/checkpoint/device_snapshot.h>

namespace gradtile {

struct SaveReport {
    std::int64_t step = 0;
    std::filesystem::path path;
    bool saved = false;    ///< safe on disk: written, verified, committed
    bool best = false;     ///< asked to be best.h5
    bool is_best = false;  ///< and so it is
    std::string message;   ///< one line: why it failed, or what went wrong after it was safe; empty otherwise
    std::uint64_t bytes = 0;
    double copy_seconds = 0;   ///< what training waited for the copy, on the host or on its stream
    double write_seconds = 0;  ///< what the thread needed for the rest
};

/// Used from one thread, which also hears what became of the saves, through poll(): nothing is called back
/// from elsewhere. A save that fails is reported and harms neither training nor older checkpoints.
///
/// A save that is asked for while the one before is still being written waits for it: none is ever left out,
/// and there is one copy of the state, not a queue of them. Who would rather skip asks busy() first.
class SnapshotWriter {
  public:
    /// Copies on ctx's threads; what lies on a GPU, in the order of ctx's stream.
    SnapshotWriter(CheckpointDirectory directory, const Context& ctx);
    /// Waits for the save under way.
    ~SnapshotWriter();
    SnapshotWriter(const SnapshotWriter&) = delete;
    SnapshotWriter& operator=(const SnapshotWriter&) = delete;

    const CheckpointDirectory& directory() const { return directory_; }
    /// Gets the memory for checkpoints like this one beforehand, so that the first save does not wait for the
    /// kernel to find it. The tensors' contents are not looked at.
    void reserve(const Checkpoint& like);
    /// Copies the state, which may change again once this returns, and starts saving it. `best` also names it
    /// best.h5. Never throws because of memory or files; poll() tells.
    void save(const Checkpoint& live, bool best = false);
    /// The same without a copy: of tensors on the host that nobody changes before wait() returns.
    void save_in_place(Checkpoint checkpoint, bool best = false);
    bool busy() const;
    /// What became of saves since the last call, oldest first.
    std::vector<SaveReport> poll();
    /// Returns when nothing is under way; poll() then tells all.
    void wait();

  private:
    struct Job {
        Checkpoint checkpoint;
        std::uint64_t device_bytes = 0;  // of the staging memory, that come from the GPU
        SaveReport report;
    };
    SaveReport report_of(const Checkpoint& checkpoint, bool best) const;
    void start_writing(Job job);
    void loop();
    void write(Job& job) const;
    struct Plan;
    /// The checkpoint with its tensors in staging memory, contiguous, and what must be copied there.
    Plan plan_staging(const Checkpoint& live);
    void grow_staging(std::uint64_t bytes);

    CheckpointDirectory directory_;
    Context ctx_;
    std::shared_ptr<Buffer> staging_;
    std::unique_ptr<DeviceSnapshot> on_device_;  // when ctx's device is a GPU

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<Job> job_;  // set while a save is under way
    bool stop_ = false;
    std::vector<SaveReport> reports_;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace gradtile
