#pragma once
/// Writes a file from beginning to end: bytes, integers and tensor elements.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gradtile/core/io/durable_file.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Writes a new file. The file has its final name only after commit() has returned; see DurableFile. Errors
/// name the file.
class TensorWriter {
  public:
    explicit TensorWriter(const std::string& path, Existing existing = Existing::replace);

    void write(std::span<const std::byte> bytes);
    /// Writes the elements in row-major order. `x` is on the CPU, with any strides.
    void write(const Tensor& x);
    template <std::integral T>
    void write_integer(T value) {
        std::byte bytes[sizeof value];
        put_little_endian(bytes, value);
        write(bytes);
    }
    /// Writes zeros up to a multiple of `alignment` bytes.
    void align(std::uint64_t alignment);
    const std::string& path() const { return path_; }
    void commit();

  private:
    std::string path_;
    std::optional<DurableFile> file_;
    std::vector<std::byte> buffer_;
    std::uint64_t offset_ = 0;
};

}  // namespace gradtile
