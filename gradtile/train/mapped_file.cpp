#include <gradtile/train/mapped_file.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <gradtile/core/check.h>
#include <gradtile/core/descriptor.h>

namespace gradtile {

MappedFile::MappedFile(const std::string& path) {
    check(!path.empty(), "data: no file given");
    // Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever instead of being refused.
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    check(*file >= 0, path, ": cannot be opened: ", std::strerror(errno));
    struct stat status {};
    check(::fstat(*file, &status) == 0, path, ": cannot be examined: ", std::strerror(errno));
    check(!S_ISDIR(status.st_mode), path, ": is a directory; expected a file");
    check(S_ISREG(status.st_mode), path, ": is not a regular file");
    if (status.st_size == 0) return;
    const auto size = static_cast<std::size_t>(status.st_size);
    void* const address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, *file, 0);
    check(address != MAP_FAILED, path, ": cannot be mapped into memory: ", std::strerror(errno));
    data_ = static_cast<const std::byte*>(address);  // outlives the descriptor
    size_ = size;
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace gradtile
