#pragma once
/// The directory of a run: config.json, metrics.jsonl, checkpoints/, loss.svg.
#include <filesystem>
#include <string>

#include <gradtile/train/run_lock.h>
#include <gradtile/train/train_config.h>

namespace gradtile {

/// Replaces a small file, whole or not at all, durably. Throws Error naming it.
void write_text_file(const std::filesystem::path& path, const std::string& text);

/// Holds the run's lock as long as it lives.
class RunDirectory {
  public:
    /// Makes the directory where needed and writes config.json. Throws Error when it already holds a run, is
    /// in use by another process or cannot be written.
    static RunDirectory create(const TrainConfig& config);
    /// Throws Error when the directory holds no run or is in use.
    static RunDirectory open(const std::filesystem::path& path);

    /// The settings that config.json holds: those the run was made with.
    TrainConfig config() const;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path config_file() const { return path_ / "config.json"; }
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
