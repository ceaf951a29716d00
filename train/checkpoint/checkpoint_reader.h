#pragma once
/// Reads checkpoint files with pread alone; no HDF5 code runs. Errors come without the file's name.
///
/// No file, however made, makes these functions take more memory than a small multiple of its size, or more
/// time than a few passes over it.
#include <filesystem>
#include <span>

#include <gradtile/core/io/file_system.h>
#include <gradtile/train/checkpoint/checkpoint_header.h>
#include <gradtile/train/checkpoint/checkpoint_manifest.h>

namespace gradtile {

/// Reads the header alone. A file of format version 1 is refused with the command that converts it, for which
/// `path` is the file's.
CheckpointHeader read_header(const OpenFile& file, const std::filesystem::path& path);

struct CheckpointContents {
    CheckpointHeader header;
    CheckpointManifest manifest;
};

/// Reads header and manifest and judges both. Throws Error unless they are sound and fit the file's size.
CheckpointContents read_contents(const OpenFile& file, const std::filesystem::path& path);

/// Reads every byte of the body once, by a few threads: the bytes of object i go to destinations[i], unless
/// that is null. Throws Error unless the file's checksum and that of every object hold.
void read_body(const OpenFile& file, const CheckpointContents& contents,
               std::span<std::byte* const> destinations);

}  // namespace gradtile
