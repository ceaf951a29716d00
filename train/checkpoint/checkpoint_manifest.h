#pragma once
/// The list of a checkpoint's tensors and texts and of the bytes that hold them: with it a reader needs no
/// HDF5. It lies in the user block, behind the header; layout in docs/checkpoint_format.md.
///
/// Binary rather than JSON: its size is known before the first address is, so the user block can be sized
/// before libhdf5 begins; and a reader takes no more memory than a small multiple of its bytes.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gradtile/core/dtype.h>
#include <gradtile/core/shape.h>

namespace gradtile {

/// Bytes of the file; `begin` counts from the file's first byte.
struct FileExtent {
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
    std::uint64_t end() const { return begin + bytes; }
    bool operator==(const FileExtent&) const = default;
};

struct StoredObject {
    std::string name;            ///< with its group: "params/head.weight", "config/json"
    std::optional<DType> dtype;  ///< none: a text, whose shape is [bytes]
    Shape shape;
    std::uint32_t crc32c = 0;         ///< of the bytes below, in that order
    std::vector<FileExtent> extents;  ///< one after the other: the row-major elements

    std::uint64_t bytes() const {
        return static_cast<std::uint64_t>(shape.elements()) * (dtype ? size_of(*dtype) : 1);
    }
    bool operator==(const StoredObject&) const = default;
};

struct CheckpointManifest {
    std::vector<StoredObject> objects;  ///< in name order

    /// What encode() will take, whatever the addresses and checksums.
    std::uint64_t encoded_bytes() const;
    std::vector<std::byte> encode() const;
    /// Throws Error (without the file's name) unless the bytes are a list that a writer could have made for a
    /// file whose body is `body`: known names, types and ranks; every extent inside the body and none
    /// overlapping another, so that all objects together are no larger than the file; each object's extents
    /// as large as its shape; the four texts present.
    static CheckpointManifest decode(std::span<const std::byte> bytes, const FileExtent& body);

    bool operator==(const CheckpointManifest&) const = default;
};

}  // namespace gradtile
