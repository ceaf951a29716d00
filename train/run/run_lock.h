#pragma once
/// A run's lock: only one process trains into a directory.
#include <filesystem>

#include <gradtile/core/io/file_system.h>

namespace gradtile {

/// Holds an flock() on DIRECTORY/.lock during its lifetime. The kernel releases the lock when the process
/// ends in any way, so a lock is never stale.
class RunLock {
  public:
    static constexpr const char* file_name = ".lock";

    /// The directory must exist. Throws Error naming the directory and the process that holds the lock.
    /// Throws Error when .lock does not belong to this user alone (see open_own_file()).
    explicit RunLock(const std::filesystem::path& directory);

    /// The file. A run that failed to start removes it: a process that has opened the file meanwhile notices
    /// that the name is gone, and locks a new file.
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
    OpenFile file_;
};

}  // namespace gradtile
