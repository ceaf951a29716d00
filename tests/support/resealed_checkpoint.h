#pragma once
/// Checkpoint files that were modified and then given valid checksums: malicious files, and damage that no
/// checksum detects.
#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <gradtile/core/io/checksum.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/checkpoint/checkpoint_header.h>
#include <gradtile/train/checkpoint/checkpoint_manifest.h>

#include "memory_file_system.h"

namespace gradtile::test {

/// The header fields' offsets; see docs/checkpoint_format.md.
enum HeaderField : std::size_t {
    kVersionField = 32,
    kBodyCrcField = 36,
    kStepField = 40,
    kLengthField = 48,
    kHeaderCrcField = 56,
    kManifestCrcField = 60,
    kUserBlockField = 64,
    kManifestBytesField = 72,
    kHeaderEnd = 128
};

/// Recomputes the header's checksums. Other fields stay unchanged, because a test may have modified them.
inline void reseal_header(std::vector<std::byte>& file) {
    if (file.size() <= kHeaderEnd) return;
    const std::uint64_t block = std::clamp<std::uint64_t>(
        get_little_endian<std::uint64_t>(file.data() + kUserBlockField), kHeaderEnd, file.size());
    const auto all = std::span(file);
    const auto list = all.subspan(kHeaderEnd, static_cast<std::size_t>(block) - kHeaderEnd);
    put_little_endian(file.data() + kManifestCrcField, crc32c(list));
    put_little_endian(file.data() + kBodyCrcField, crc32c(all.subspan(static_cast<std::size_t>(block))));
    put_little_endian(file.data() + kHeaderCrcField, std::uint32_t{0});
    put_little_endian(file.data() + kHeaderCrcField, crc32c(all.first(kHeaderEnd)));
}

/// Returns the manifest from a file with correct sizes in its header. Throws Error when the manifest is
/// invalid.
inline CheckpointManifest manifest_of(const std::vector<std::byte>& file) {
    CheckpointHeader::Bytes start;
    check(file.size() > start.size(), "no header");
    std::copy_n(file.begin(), start.size(), start.begin());
    const CheckpointHeader header = CheckpointHeader::decode(start);
    check(header.length == file.size(), "a wrong length");
    return CheckpointManifest::decode(
        std::span(file).subspan(kHeaderEnd, static_cast<std::size_t>(header.manifest_bytes)), header);
}

/// Recomputes all checksums in a file, including its objects' checksums if the manifest can be decoded.
inline std::vector<std::byte> reseal(std::vector<std::byte> file) {
    reseal_header(file);
    try {
        CheckpointManifest manifest = manifest_of(file);
        for (StoredObject& object : manifest.objects) {
            if (manifest.is_in_parts(object)) continue;
            object.crc32c = 0;
            for (const FileExtent& extent : object.extents)
                object.crc32c = crc32c(std::span(file).subspan(static_cast<std::size_t>(extent.begin),
                                                               static_cast<std::size_t>(extent.bytes)),
                                       object.crc32c);
        }
        const std::vector<std::byte> list = manifest.encode();
        std::copy(list.begin(), list.end(), file.begin() + kHeaderEnd);
        reseal_header(file);
    } catch (const Error&) {
        // The reader rejects such a manifest as well.
    }
    return file;
}

/// Returns a valid file's bytes.
inline std::vector<std::byte> file_of(const Checkpoint& checkpoint) {
    MemoryFileSystem fs;
    write_checkpoint("sound.h5", checkpoint, fs);
    return fs.bytes("sound.h5");
}

/// A valid file whose manifest `change` has modified. The manifest may grow or shrink, so the body and the
/// extents in it are moved.
inline std::vector<std::byte> with_manifest(const std::vector<std::byte>& sound,
                                            const std::function<void(CheckpointManifest&)>& change) {
    CheckpointManifest manifest = manifest_of(sound);
    const auto old_block = get_little_endian<std::uint64_t>(sound.data() + kUserBlockField);
    change(manifest);
    const std::uint64_t block = CheckpointHeader::user_block_for(manifest.encoded_bytes());
    for (StoredObject& object : manifest.objects)
        for (FileExtent& extent : object.extents) extent.begin += block - old_block;
    const std::vector<std::byte> list = manifest.encode();
    std::vector<std::byte> file(static_cast<std::size_t>(block));
    std::copy_n(sound.begin(), std::size_t{kHeaderEnd}, file.begin());
    std::copy(list.begin(), list.end(), file.begin() + kHeaderEnd);
    file.insert(file.end(), sound.begin() + static_cast<std::ptrdiff_t>(old_block), sound.end());
    put_little_endian(file.data() + kLengthField, std::uint64_t{file.size()});
    put_little_endian(file.data() + kUserBlockField, block);
    put_little_endian(file.data() + kManifestBytesField, std::uint64_t{list.size()});
    return reseal(std::move(file));
}

}  // namespace gradtile::test
