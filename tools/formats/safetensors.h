#pragma once
/// The safetensors format, in which projects exchange models. A file contains 8 bytes with the header length
/// N, N bytes of JSON that describe the tensors, and the tensors' elements, little-endian and row-major.
/// github.com/huggingface/safetensors describes the format.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gradtile/core/io/data_file.h>
#include <gradtile/core/tensor.h>
#include <gradtile/core/text/json_value.h>

namespace gradtile {

class TensorWriter;

/// The largest header length. A file with a longer header is refused before the header is read.
constexpr std::uint64_t max_safetensors_header = 100'000'000;

struct SafetensorsEntry {
    std::string name;
    std::string_view dtype;                ///< as in the file: "F32", "BF16", "BOOL" ...; a constant
    std::vector<std::int64_t> shape = {};  ///< a shape with any number of axes
    /// The elements' byte range, counted from the header's end.
    std::uint64_t begin = 0, end = 0;

    bool operator==(const SafetensorsEntry&) const = default;
};

struct SafetensorsHeader {
    std::vector<SafetensorsEntry> entries = {};  ///< ordered by their elements' position in the file
    std::vector<std::uint32_t> by_name = {};     ///< indices into `entries`, ordered by name
    JsonValue metadata = {};                     ///< an object with strings; null: none
};

/// Reads a header's JSON for a file whose elements take `data_bytes`. Throws Error that begins with `source`
/// unless the text is an object whose members are tensors, each with a known dtype and with a range as long
/// as dtype and shape require. The ranges must cover all bytes once: no hole, no overlap, no bytes after the
/// last tensor. Names and members that occur twice are refused, as are unknown members.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                           std::string_view source);

/// A safetensors file that is open for reading. If a file is damaged or hostile, reading gives either an
/// Error or tensors of the stated sizes, and the memory use is at most a small multiple of the file's size.
class SafetensorsFile {
  public:
    /// Reads and checks the header. Throws Error naming the file.
    explicit SafetensorsFile(const std::string& path);

    const std::string& path() const { return file_.path(); }
    const SafetensorsHeader& header() const { return header_; }
    /// Returns a tensor's entry; null if the file has no tensor with this name.
    const SafetensorsEntry* find(std::string_view name) const;
    /// Reads a tensor into new memory on the CPU. Throws Error naming file and tensor when its dtype is not
    /// F64, F32, BF16, F16 or I32, or when it has more axes than a Tensor can have.
    Tensor read(const SafetensorsEntry& entry) const;
    /// The same for rows begin <= i < end along the first axis; the tensor has at least one axis.
    Tensor read_rows(const SafetensorsEntry& entry, std::int64_t begin, std::int64_t end) const;

  private:
    DType dtype_of(const SafetensorsEntry& entry) const;

    DataFile file_;
    std::uint64_t data_offset_ = 0;
    SafetensorsHeader header_;
};

/// A tensor to write: its name and its values.
using NamedTensor = std::pair<std::string, Tensor>;

/// Writes a file durably (see DurableFile), with the tensors in the given order; replaces an existing file.
/// The tensors must be on the CPU and may have any strides. Throws Error that names the file.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});
/// Writes the same content to `file`, without commit().
void write_safetensors(TensorWriter& file, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace gradtile
