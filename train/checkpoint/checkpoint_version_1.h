#pragma once
/// Checkpoints of format version 1. Only libhdf5 can read them.
#include <filesystem>

#include <gradtile/train/checkpoint/checkpoint.h>

namespace gradtile {

/// Reads a checkpoint of format version 1. Verifies every byte against the file's checksum, and then every
/// tensor against the tensor's checksum. Throws Error when the file is not a sound checkpoint.
///
/// Call this function only in a process that may crash (see convert_checkpoint()): a checksum guards against
/// accidents, not against attackers, and libhdf5 1.10 crashes on some files whose checksums match.
Checkpoint read_version_1(const std::filesystem::path& path, SymbolicLinks links = SymbolicLinks::follow,
                          FileSystem& fs = FileSystem::posix());

}  // namespace gradtile
