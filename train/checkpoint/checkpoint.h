#pragma once
/// Checkpoints: everything a run needs to go on to the bit, as one self-describing HDF5 file. The format, and
/// what later versions will still read, stands in docs/checkpoint_format.md.
///
/// Promise: a save that was reported is never lost; one that was interrupted is never taken for a whole one;
/// a damaged file is refused by name. Errors are one line, "checkpoint FILE: ...".
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/io/file_system.h>
#include <gradtile/core/tensor.h>
#include <gradtile/core/text/json_value.h>

namespace gradtile {

/// Tensors by name. A name is printable ASCII; '/' in it makes groups in the file ("m/wte.weight").
using NamedTensors = std::map<std::string, Tensor>;

struct Checkpoint {
    std::int64_t step = 0;        ///< completed optimizer steps
    NamedTensors params = {};     ///< weights as the model computes with them, [out, in], vocabulary unpadded
    NamedTensors master = {};     ///< float32 masters of 16-bit weights; empty otherwise
    NamedTensors optimizer = {};  ///< moments
    JsonValue config = {};        ///< model and run settings
    JsonValue data = {};          ///< tokenizer identity, position and shuffle of the data
    JsonValue rng = {};           ///< seeds and counters
    JsonValue meta = {};          ///< anything else: versions, world size, validation loss
};

/// The tensors of one of the groups params, master and optimizer.
NamedTensors& tensors_of(Checkpoint& checkpoint, std::string_view group);

/// Writes `checkpoint` durably (see DurableFile): checks every value, writes, reads the file's bytes back
/// against what was meant, and only then gives it its name. An existing file of that name is replaced at that
/// moment.
///
/// Tensors live on the CPU, have 1 to 6 axes, any strides, any dtype; they are stored row-major. Throws Error
/// on a tensor that holds an infinity or a NaN, naming it, and on any failure of the file system; then no
/// temporary is left, and the file only when all but the last step, its directory's fsync, had succeeded.
void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint,
                      FileSystem& fs = FileSystem::posix());

struct ReadOptions {
    bool training_state = true;  ///< false: leaves master and optimizer out
    bool follow_links = true;    ///< false: refuses a symbolic link
};

/// Reads a checkpoint into contiguous tensors of its own. Every byte is verified against the file's checksum,
/// and every tensor against its own. Throws Error on anything that is not a sound checkpoint; a file of
/// format version 1 is refused with the command that converts it.
///
/// No file, however made, ends the process or takes more than a small multiple of its size in memory and
/// time: no HDF5 code runs.
Checkpoint read_checkpoint(const std::filesystem::path& path, const ReadOptions& options = {},
                           FileSystem& fs = FileSystem::posix());

struct TensorInfo {
    std::string name;  ///< with its group: "params/head.weight"
    DType dtype = DType::f32;
    Shape shape;
    std::uint32_t crc32c = 0;  ///< of the row-major little-endian elements

    std::uint64_t bytes() const { return static_cast<std::uint64_t>(shape.elements()) * size_of(dtype); }
    bool operator==(const TensorInfo&) const = default;
};

struct CheckpointInfo {
    std::int64_t step = 0;
    std::uint64_t file_bytes = 0;
    std::uint32_t body_crc32c = 0;
    std::vector<TensorInfo> tensors;  ///< in name order
    JsonValue config, data, rng, meta;
};

/// What stands in a checkpoint, verified as read_checkpoint() verifies it but without holding any tensor.
/// Throws Error on anything that is not a sound checkpoint.
CheckpointInfo inspect_checkpoint(const std::filesystem::path& path, FileSystem& fs = FileSystem::posix());

}  // namespace gradtile
