#pragma once
/// Reads checkpoint files with pread only; no HDF5 code runs. Error messages do not contain the file's name.
///
/// No file content can make these functions use more memory than a small multiple of the file's size, or more
/// time than a few passes over the file.
#include <span>

#include <gradtile/core/io/file_system.h>
#include <gradtile/train/checkpoint/checkpoint_header.h>
#include <gradtile/train/checkpoint/checkpoint_manifest.h>

namespace gradtile {

/// Reads only the header.
CheckpointHeader read_header(const OpenFile& file);

struct CheckpointContents {
    CheckpointHeader header;
    CheckpointManifest manifest;
};

/// Reads and checks header and manifest. Throws Error unless both are sound and fit the file's size.
CheckpointContents read_contents(const OpenFile& file);

/// Reads every byte of the body once, on a few threads. Writes object i's bytes to destinations[i], unless
/// destinations[i] is null or the object is in parts. Throws Error unless the file's checksum and the
/// checksums of the objects in this file match.
void read_body(const OpenFile& file, const CheckpointContents& contents,
               std::span<std::byte* const> destinations);

}  // namespace gradtile
