#include <cerrno>
#include <fstream>

#include <fcntl.h>

#include <gradtile/core/check.h>
#include <gradtile/core/io/durable_file.h>

namespace gradtile {

namespace {
constexpr const char* kMark = ".tmp-";
}

DurableFile::DurableFile(std::filesystem::path final_path, FileSystem& fs)
    : fs_(fs), final_path_(std::move(final_path)), temporary_(temporary_for(final_path_)) {
    // O_EXCL: does not write to an existing file, which another user may have prepared.
    file_ = OpenFile(fs_, temporary_, O_RDWR | O_CREAT | O_EXCL);
}

DurableFile::~DurableFile() {
    if (!renamed_) fs_.remove(temporary_);
}

void DurableFile::reserve(std::uint64_t bytes) {
    const int result = fs_.reserve(file_.descriptor(), bytes);
    if (result == -EOPNOTSUPP || result == -ENOSYS) return;
    file_check(result, "reserve disk space");
}

void DurableFile::commit(std::uint64_t size, Sync sync) {
    file_check(fs_.truncate(file_.descriptor(), size), "truncate");
    if (sync == Sync::file_and_directory) file_.sync();
    file_.close();
    file_check(fs_.rename(temporary_, final_path_), "rename into place");
    renamed_ = true;
    if (sync == Sync::file_and_directory) sync_directory(fs_, final_path_.parent_path());
}

std::filesystem::path DurableFile::temporary_for(const std::filesystem::path& path) {
    std::filesystem::path temporary = path;
    temporary += kMark + random_hex(8);
    return temporary;
}

bool DurableFile::is_temporary(const std::filesystem::path& path) {
    return path.filename().string().find(kMark) != std::string::npos;
}

namespace {

void write_directly(const std::string& path, std::initializer_list<std::span<const std::byte>> parts) {
    std::ofstream stream(path, std::ios::binary);
    for (const std::span<const std::byte> part : parts)
        stream.write(reinterpret_cast<const char*>(part.data()), static_cast<std::streamsize>(part.size()));
    stream.close();
    if (!stream.good()) file_check(-std::int64_t{errno}, "write");
}

}  // namespace

void write_whole_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts) {
    const bool exists = std::filesystem::exists(path);
    try {
        check(!std::filesystem::is_directory(path), "is a directory; expected a file");
        if (exists && !std::filesystem::is_regular_file(path)) return write_directly(path, parts);
        DurableFile file(exists ? std::filesystem::canonical(path) : std::filesystem::path(path));
        std::uint64_t size = 0;
        for (const std::span<const std::byte> part : parts) {
            file.file().write(part.data(), part.size(), size);
            size += part.size();
        }
        file.commit(size, DurableFile::Sync::none);
    } catch (const Error& error) {
        throw Error(concat(path, ": ", error.what()), error.where());
    }
}

}  // namespace gradtile
