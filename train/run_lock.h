#pragma once
/// One run, one writer: while a process trains into a directory no other may.
#include <filesystem>

#include <gradtile/core/io/file_system.h>

namespace gradtile {

/// Holds an flock() on DIRECTORY/.lock for its lifetime; the kernel lets go when the process dies, however it
/// dies, so a lock is never stale. The file stays: removing it would let two processes lock two files of one
/// name.
class RunLock {
  public:
    /// The directory must exist. Throws Error naming the directory and the process that holds the lock, and
    /// when .lock is not a file of this user alone (see open_own_file()).
    explicit RunLock(const std::filesystem::path& directory);

  private:
    OpenFile file_;
};

}  // namespace gradtile
