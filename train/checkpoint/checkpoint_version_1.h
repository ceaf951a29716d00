#pragma once
/// Files of format version 1, which can only be read by libhdf5.
#include <filesystem>

#include <gradtile/train/checkpoint/checkpoint.h>

namespace gradtile {

/// Reads a checkpoint of format version 1: every byte verified against the file's checksum, then every tensor
/// against its own. Throws Error on anything that is not a sound one.
///
/// A checksum guards against accidents, not against people: libhdf5 1.10 crashes on some files whose
/// checksums are right. So only a process that may die reads them: see convert_checkpoint().
Checkpoint read_version_1(const std::filesystem::path& path, SymbolicLinks links = SymbolicLinks::follow,
                          FileSystem& fs = FileSystem::posix());

}  // namespace gradtile
