#pragma once
/// The secret that the processes of a run share, so that rank 0 admits no other process.
#include <string>

namespace gradtile {

/// Throws Error, naming the variable, unless the text of GRADTILE_RUN_KEY can be a secret: 32 to 1024
/// printable characters.
void check_run_key(const std::string& key);

/// Where processes of one host and user find the key that rank 0 has made, when they were started without
/// one: a file that only this user can read, in a directory that only this user can write to. It is named by
/// the port at which rank 0 listens, which no two processes do at a time.
class KeyFile {
  public:
    /// Replaces what a former run left. Throws Error when the directory is not this user's alone.
    KeyFile(int port, const std::string& key);
    ~KeyFile();
    KeyFile(const KeyFile&) = delete;
    KeyFile& operator=(const KeyFile&) = delete;

    /// Throws Error when there is none, or when others may have written it.
    static std::string read(int port);
    static std::string path(int port);

  private:
    int port_;
};

}  // namespace gradtile
