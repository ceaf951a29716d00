#pragma once
/// A run's directory: config.json, run.json, metrics.jsonl, checkpoints/, loss.svg.
///
/// run.json is {"identity": "<32 hexadecimal digits>"}, drawn when the run is created; each checkpoint in the
/// run holds the same digits. Runs from versions before run.json have no identity.
///
/// Another user may have prepared the directory. Therefore nothing is read or written through a symbolic link
/// in it, with one exception: `checkpoints` may be this user's link to a directory on another disk. The
/// directory's own path may contain links. These checks do not protect against a user who can write to the
/// directory while the run uses it.
#include <filesystem>
#include <string>
#include <vector>

#include <gradtile/core/io/removed_on_signal.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/run/run_lock.h>

namespace gradtile {

/// Replaces a small file durably, completely or not at all. Throws Error naming the file.
void write_text_file(const std::filesystem::path& path, const std::string& text);

/// Returns a new run's identity: 128 random bits as hexadecimal digits.
std::string new_run_identity();

/// Holds the run's lock during its lifetime.
class RunDirectory {
  public:
    /// Creates the directory if needed, and writes run.json and config.json. Throws Error when the directory
    /// already holds a run, is in use by another process, cannot be written, or is on a disk without room for
    /// a file with `checkpoint_bytes` bytes. After an error the directory is as before. A run that was
    /// interrupted before its first step, or an import before its end, has nothing to lose, and is replaced.
    static RunDirectory create(const TrainConfig& config, const std::string& identity,
                               std::uint64_t checkpoint_bytes);
    /// Throws Error when the directory holds no run or is in use, or when `checkpoints` in it is neither a
    /// directory nor this user's link to a directory.
    static RunDirectory open(const std::filesystem::path& path);

    /// Returns the settings in config.json, with which the run was created.
    TrainConfig config() const;
    /// Returns the identity in run.json; empty if there is no run.json.
    std::string identity() const;
    /// Throws Error, which begins with `setting`, when the checkpoints' disk has no room for a file with
    /// `checkpoint_bytes` bytes: training would lose its result.
    void require_room(const char* setting, std::uint64_t checkpoint_bytes) const;
    /// Undoes create(), for a run that failed to start. A signal that ends the process does the same until
    /// keep() is called, when the run has started.
    void discard() const;
    void keep() { on_signal_.clear(); }
    /// Removes a killed process's temporary files.
    void remove_temporaries() const;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path config_file() const { return path_ / "config.json"; }
    std::filesystem::path identity_file() const { return path_ / "run.json"; }
    std::filesystem::path metrics_file() const { return path_ / "metrics.jsonl"; }
    std::filesystem::path checkpoints() const { return checkpoints_of(path_); }
    static std::filesystem::path checkpoints_of(const std::filesystem::path& run) {
        return run / "checkpoints";
    }
    std::filesystem::path loss_curve_file() const { return path_ / "loss.svg"; }

  private:
    explicit RunDirectory(std::filesystem::path path) : path_(std::move(path)), lock_(path_) {}
    void require_no_run() const;
    bool was_interrupted_at_start() const;
    std::vector<std::filesystem::path> own_paths() const;
    std::filesystem::path path_;
    RunLock lock_;
    bool made_ = false;  // create() made the directory
    std::vector<RemovedOnSignal> on_signal_;
};

}  // namespace gradtile
