#pragma once
/// Lists a checkpoint's tensors and texts, and the file ranges that hold them. With this list a reader needs
/// no HDF5 code. The manifest follows the header in the user block; docs/checkpoint_format.md gives the
/// layout.
///
/// The manifest is binary and not JSON for two reasons. First, its size does not depend on the addresses, so
/// the user block's size is known before libhdf5 writes anything. Second, reading a binary manifest needs at
/// most a small multiple of the manifest's size in memory.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gradtile/core/dtype.h>
#include <gradtile/core/tensor.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/checkpoint/checkpoint_header.h>

namespace gradtile {

struct StoredObject {
    std::string name;            ///< includes the group: "params/head.weight", "config/json"
    std::optional<DType> dtype;  ///< empty for a text, whose shape is [bytes]
    Shape shape;
    std::uint32_t crc32c = 0;  ///< checksum over the bytes in `extents`, in that order
    /// The bytes in these extents, in this order, are the row-major elements. Empty for a tensor in parts.
    std::vector<FileExtent> extents;

    std::uint64_t bytes() const {
        return static_cast<std::uint64_t>(shape.elements()) * (dtype ? size_of(*dtype) : 1);
    }
    bool operator==(const StoredObject&) const = default;
};

struct CheckpointManifest {
    std::vector<StoredObject> objects;  ///< in name order
    std::optional<PartTable> parts;     ///< where the tensors are; empty: in this file

    bool is_in_parts(const StoredObject& object) const { return parts && object.dtype; }

    /// Returns the size of encode()'s result in bytes, which does not depend on addresses and checksums.
    std::uint64_t encoded_bytes() const;
    std::vector<std::byte> encode() const;
    /// Throws Error (without the file's name) unless a writer could have made these bytes for a file with
    /// this header. Checks that names, types and ranks are known, that every extent is inside the body, that
    /// no two extents overlap (so the objects in this file together are no larger than the file), that each
    /// object's extents are as large as its shape (without extents if it is a tensor in parts), and that the
    /// four texts are present.
    static CheckpointManifest decode(std::span<const std::byte> bytes, const CheckpointHeader& header);

    bool operator==(const CheckpointManifest&) const = default;
};

}  // namespace gradtile
