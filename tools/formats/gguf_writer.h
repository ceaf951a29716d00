#pragma once
/// Writes GGUF files, version 3 (github.com/ggml-org/ggml, docs/gguf.md): llama.cpp's format.
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gradtile/tools/formats/safetensors.h>

namespace gradtile {

/// The metadata types that this program writes.
using GgufValue = std::variant<std::uint32_t, float, bool, std::string, std::vector<std::string>,
                               std::vector<std::int32_t>, std::vector<float>, std::vector<std::uint8_t>>;

struct GgufFile {
    std::vector<std::pair<std::string, GgufValue>> metadata;
    std::vector<NamedTensor> tensors = {};  ///< F32, F16 or BF16, on the CPU, with any strides
};

/// Writes a new file durably (see DurableFile). Tensors begin at multiples of 32 bytes. Throws Error that
/// names the file if it exists or cannot be written, or the tensor if it has another dtype.
void write_gguf(const std::string& path, const GgufFile& file);

}  // namespace gradtile
