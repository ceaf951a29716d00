#pragma once
/// The directory of a run: config.json, run.json, metrics.jsonl, checkpoints/, loss.svg.
///
/// run.json is {"identity": "<32 hexadecimal digits>"}, drawn when the run is made; each of its checkpoints
/// carries the same digits. Runs made by versions before run.json have no identity.
///
/// Somebody else may have prepared the directory. Nothing is therefore read or written through a symbolic
/// link in it, with one exception: `checkpoints` may be a link that this user made, to a directory on another
/// disk. The directory's own path may contain links. This does not protect against somebody who can write to
/// the directory while a run uses it.
#include <filesystem>
#include <string>

#include <gradtile/train/run_lock.h>
#include <gradtile/train/train_config.h>

namespace gradtile {

/// Replaces a small file, whole or not at all, durably. Throws Error naming it.
void write_text_file(const std::filesystem::path& path, const std::string& text);

/// A new run's identity: 128 random bits as hexadecimal digits.
std::string new_run_identity();

/// Holds the run's lock as long as it lives.
class RunDirectory {
  public:
    /// Makes the directory where needed and writes run.json and config.json. Throws Error when it already
    /// holds a run, is in use by another process or cannot be written.
    static RunDirectory create(const TrainConfig& config, const std::string& identity);
    /// Throws Error when the directory holds no run or is in use, or when `checkpoints` in it is neither a
    /// directory nor this user's link to one.
    static RunDirectory open(const std::filesystem::path& path);

    /// The settings that config.json holds: those the run was made with.
    TrainConfig config() const;
    /// The identity in run.json; empty when there is no run.json.
    std::string identity() const;
    /// Removes the temporaries of a killed process.
    void remove_temporaries() const;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path config_file() const { return path_ / "config.json"; }
    std::filesystem::path identity_file() const { return path_ / "run.json"; }
    std::filesystem::path metrics_file() const { return path_ / "metrics.jsonl"; }
    std::filesystem::path checkpoints() const { return checkpoints_of(path_); }
    static std::filesystem::path checkpoints_of(const std::filesystem::path& run) {
        return run / "checkpoints";
    }
    std::filesystem::path picture() const { return path_ / "loss.svg"; }

  private:
    explicit RunDirectory(std::filesystem::path path) : path_(std::move(path)), lock_(path_) {}
    std::filesystem::path path_;
    RunLock lock_;
};

}  // namespace gradtile
