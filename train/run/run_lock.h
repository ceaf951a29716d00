#pragma once
/// The lock of a run: only one process trains into a directory.
#include <filesystem>

#include <gradtile/core/io/file_system.h>

namespace gradtile {

/// Holds an flock() on DIRECTORY/.lock during its lifetime. The kernel releases the lock when the process
/// ends in any way, so a lock is never stale. The file is not removed: if it were, two processes could lock
/// two files of the same name.
class RunLock {
  public:
    /// The directory must exist. Throws Error naming the directory and the process that holds the lock.
    /// Throws Error when .lock does not belong to this user alone (see open_own_file()).
    explicit RunLock(const std::filesystem::path& directory);

  private:
    OpenFile file_;
};

}  // namespace gradtile
