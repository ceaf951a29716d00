#pragma once
/// A file mapped into memory, read-only: token files larger than memory cost only the pages that are read.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace gradtile {

/// Unmapped with the last use. Sizes and offsets are 64-bit. The file must not shrink while it is mapped.
class MappedFile {
  public:
    /// Throws Error naming the file when it is missing, a directory, not a regular file, or unreadable.
    /// An empty file gives an empty span.
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::span<const std::byte> bytes() const { return {data_, size_}; }
    std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  private:
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace gradtile
