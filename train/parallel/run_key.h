#pragma once
/// The secret key that all processes in a run share, so that rank 0 admits no other process.
#include <string>

namespace gradtile {

/// Throws Error unless GRADTILE_RUN_KEY's value has 32 to 1024 printable characters.
void check_run_key(const std::string& key);

/// A file through which rank 0 hands a new key to this user's other processes on the same host, when
/// GRADTILE_RUN_KEY is not set. Only this user can read the file and write to its directory. The file is
/// named after the port at which rank 0 listens, which is unique on a host.
class KeyFile {
  public:
    /// Replaces an earlier run's file. Throws Error when others can access the directory.
    KeyFile(int port, const std::string& key);
    ~KeyFile();
    KeyFile(const KeyFile&) = delete;
    KeyFile& operator=(const KeyFile&) = delete;

    /// Throws Error when there is no file, or when others can access it.
    static std::string read(int port);
    static std::string path(int port);

  private:
    int port_;
};

}  // namespace gradtile
