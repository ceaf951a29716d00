// Fuzzes the safetensors reader: any bytes give one Error, or tensors that cover the data exactly once. The
// file then shrinks while it is open: reading must give an Error or the tensor.

#include "memory_file.h"

#include <gradtile/core/check.h>
#include <gradtile/tools/formats/safetensors.h>

namespace {

using namespace gradtile;
using fuzz::MemoryFile;
using fuzz::require;

void require_whole(const SafetensorsFile& file, std::size_t size) {
    std::uint64_t end = 0;
    for (const SafetensorsEntry& entry : file.header().entries) {
        require(entry.begin == end && entry.end >= entry.begin && file.find(entry.name) != nullptr);
        end = entry.end;
    }
    require(end < size);
}

void read_all(const SafetensorsFile& file) {
    for (const SafetensorsEntry& entry : file.header().entries) {
        try {
            const Tensor x = file.read(entry);
            require(x.bytes() == entry.end - entry.begin);
        } catch (const Error&) {
            // a dtype or axis count that a Tensor cannot have
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const MemoryFile bytes;
    const std::span<const std::uint8_t> input(data, size);
    bytes.write(input);
    try {
        const SafetensorsFile file(bytes.path());
        require_whole(file, size);
        read_all(file);
        bytes.write(input.first(size / 2));  // the file becomes shorter while it is open
        read_all(file);
    } catch (const Error& error) {
        fuzz::require_clear(error, bytes.path());
    }
    return 0;
}
