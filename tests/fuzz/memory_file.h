#pragma once
/// A file in memory whose content changes. All fuzz targets for file readers use it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include <gradtile/core/check.h>
#include <gradtile/core/descriptor.h>

namespace gradtile::fuzz {

/// Ends the process, which the fuzzer reports as a finding.
inline void require(bool condition) {
    if (!condition) std::abort();
}

/// A reader's Error must be one line that names the file, or the folder that holds it.
inline void require_clear(const Error& error, std::string_view path) {
    const std::string_view message = error.what();
    require(message.find('\n') == std::string_view::npos);
    require(message.find(path) != std::string_view::npos);
}

/// A regular file in memory with a path.
class MemoryFile {
  public:
    void write(std::span<const std::uint8_t> bytes) const {
        resize(0);
        require(::pwrite(*file_, bytes.data(), bytes.size(), 0) == std::ssize(bytes));
    }
    void resize(std::size_t size) const { require(::ftruncate(*file_, static_cast<off_t>(size)) == 0); }
    const std::string& path() const { return path_; }

  private:
    Descriptor file_{::memfd_create("fuzz", MFD_CLOEXEC)};
    std::string path_ = "/proc/self/fd/" + std::to_string(*file_);
};

}  // namespace gradtile::fuzz
