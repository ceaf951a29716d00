#pragma once
/// Checkpoints: a run's whole state in one self-describing HDF5 file, so that the run resumes to the bit.
/// docs/checkpoint_format.md describes the format, and states which versions later programs will read.
///
/// Promise: a save that was reported is never lost; an interrupted save is never accepted as complete; a
/// damaged file is refused, and the error names the file. An error is one line, "checkpoint FILE: ...".
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/io/file_system.h>
#include <gradtile/core/tensor.h>
#include <gradtile/core/text/json_value.h>

namespace gradtile {

class JsonWriter;

/// Tensors by name. A name is printable ASCII; a '/' in a name makes groups in the file ("m/wte.weight").
using NamedTensors = std::map<std::string, Tensor>;

struct TensorInfo {
    std::string name;  ///< includes the group: "params/head.weight"
    DType dtype = DType::f32;
    Shape shape;
    std::uint32_t crc32c = 0;  ///< checksum over the row-major little-endian elements

    std::uint64_t bytes() const { return static_cast<std::uint64_t>(shape.elements()) * size_of(dtype); }
    bool operator==(const TensorInfo&) const = default;
};

/// A part: the file that one rank writes of a checkpoint. Its tensors are pieces: one axis, and a name from
/// piece_name().
struct CheckpointPart {
    std::uint64_t save = 0;  ///< drawn at random for each save, so that no save replaces the parts of another
    std::int64_t number = 0, count = 1;
};

/// The length and the checksum by which a main file recognizes a part.
struct PartFile {
    std::uint64_t bytes = 0;
    std::uint32_t header_crc32c = 0;  ///< over the part's header, which has the checksums of its other bytes
    bool operator==(const PartFile&) const = default;
};

/// A checkpoint's parts, as its main file lists them.
struct PartTable {
    std::uint64_t save = 0;       ///< as in CheckpointPart
    std::vector<PartFile> files;  ///< of parts 0, 1, ...
    bool operator==(const PartTable&) const = default;
};

/// A main file has this list of its parts, and their tensors' names and shapes, and no elements.
struct CheckpointParts {
    PartTable table;
    std::vector<TensorInfo> tensors;  ///< the whole tensors; write_checkpoint() computes their checksums
};

struct Checkpoint {
    std::int64_t step = 0;     ///< completed optimizer steps
    NamedTensors params = {};  ///< weights in the model's dtype, [out, in], vocabulary without padding
    /// Names of params that are on the host and do not change while saves run: a SnapshotWriter reads them
    /// in place. Not a part of the file.
    std::set<std::string> constant_params = {};
    NamedTensors master = {};     ///< float32 masters for 16-bit weights; empty otherwise
    NamedTensors optimizer = {};  ///< the optimizer's moments
    JsonValue config = {};        ///< model and run settings
    JsonValue data = {};          ///< data position and shuffle
    JsonValue rng = {};           ///< seeds and counters
    JsonValue meta = {};          ///< anything else: versions, world size, validation loss
    /// The tokenizer's JSON text (Tokenizer::to_json), a member in the file's data; empty: none. A vocabulary
    /// is too large for a JsonValue.
    std::string tokenizer = {};
    /// Set only while a run with several ranks saves. In a rank's checkpoint: the part that it is. In rank
    /// 0's: the parts with the tensors, so that params, master and optimizer are empty.
    std::optional<CheckpointPart> part = {};
    std::optional<CheckpointParts> parts = {};
};

/// Returns the name of a tensor's elements from `begin` on, in row-major order, in a part: "wte.weight/4096".
std::string piece_name(const std::string& tensor, std::int64_t begin);

/// Returns the tensors in `group`: "params", "master" or "optimizer".
NamedTensors& tensors_of(Checkpoint& checkpoint, std::string_view group);

/// Writes `checkpoint` durably (see DurableFile). Checks every value, writes the file under a temporary name,
/// reads it back, compares it with the checkpoint, and then renames it to `path`. The rename replaces an
/// existing file with that name, or refuses it.
///
/// Tensors are on the CPU, with 1 to 6 axes, any strides and any dtype; the file stores them row-major.
/// A checkpoint with `parts` becomes the main file of these parts, which lie beside it and are durable.
///
/// Throws Error, naming the tensor, if a tensor holds an infinity or a NaN, or if the parts do not hold it
/// completely. Throws Error when the file system fails. After an error no temporary file is left. `path` then
/// has its old content, unless only the last step, the directory's fsync, failed.
void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint,
                      FileSystem& fs = FileSystem::posix(), Existing existing = Existing::replace);

/// Returns the disk space that write_checkpoint() reserves, an upper bound on the file's size. The tensors
/// may be on any device; their elements are not read.
std::uint64_t checkpoint_bytes(const Checkpoint& checkpoint);

struct ReadOptions {
    bool training_state = true;  ///< false: the reader skips master and optimizer
    bool follow_links = true;    ///< false: a symbolic link is refused
};

/// Reads a checkpoint into new contiguous tensors. Every byte is verified against the file's checksum, and
/// every tensor against the tensor's checksum. Throws Error when the file is not a sound checkpoint, or one
/// of its parts is missing or not the one that was saved with it.
///
/// No file content can end the process, or make it use more memory or time than a small multiple of the
/// files' size: no HDF5 code runs.
Checkpoint read_checkpoint(const std::filesystem::path& path, const ReadOptions& options = {},
                           FileSystem& fs = FileSystem::posix());

struct CheckpointInfo {
    std::int64_t step = 0;
    std::uint64_t file_bytes = 0;     ///< of the parts, too
    std::size_t parts = 0;            ///< 0: the file is whole
    std::vector<TensorInfo> tensors;  ///< in name order
    JsonValue config, data, rng, meta;
    std::string tokenizer;  ///< as in Checkpoint
};

/// Prints data and tokenizer as one object, as in the file.
void write_checkpoint_data(JsonWriter& writer, const JsonValue& data, std::string_view tokenizer);

/// Returns a checkpoint's contents without its tensors' elements. Verifies the file as read_checkpoint()
/// does, but never holds a whole tensor in memory. Throws Error when the file is not a sound checkpoint.
CheckpointInfo inspect_checkpoint(const std::filesystem::path& path, FileSystem& fs = FileSystem::posix());

}  // namespace gradtile
