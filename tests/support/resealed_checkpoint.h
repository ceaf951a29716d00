#pragma once
/// Checkpoint files that were changed and whose checksums were all made good again: what somebody who wants
/// to hurt the reader would make, and what damage looks like that no checksum catches.
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

/// Offsets of the header's fields, as docs/checkpoint_format.md has them.
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

/// The header's checksums made good for whatever the file holds. The other fields stay: they may be what was
/// changed.
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

/// The manifest of a file whose header's sizes can be believed. Throws Error when it is not sound.
inline CheckpointManifest manifest_of(const std::vector<std::byte>& file) {
    CheckpointHeader::Bytes start;
    check(file.size() > start.size(), "no header");
    std::copy_n(file.begin(), start.size(), start.begin());
    const CheckpointHeader header = CheckpointHeader::decode(start);
    check(header.length == file.size(), "a wrong length");
    return CheckpointManifest::decode(
        std::span(file).subspan(kHeaderEnd, static_cast<std::size_t>(header.manifest_bytes)),
        {header.user_block, header.length - header.user_block});
}

/// Every checksum of a file made good: those of its objects too, where its manifest can be read.
inline std::vector<std::byte> reseal(std::vector<std::byte> file) {
    reseal_header(file);
    try {
        CheckpointManifest manifest = manifest_of(file);
        for (StoredObject& object : manifest.objects) {
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
        // The reader will refuse it, too.
    }
    return file;
}

/// The bytes of a sound file.
inline std::vector<std::byte> file_of(const Checkpoint& checkpoint) {
    MemoryFileSystem fs;
    write_checkpoint("sound.h5", checkpoint, fs);
    return fs.bytes("sound.h5");
}

/// A sound file after `change` did something to its manifest, which may grow or shrink: the body moves with
/// the user block, and extents inside it with the body.
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
