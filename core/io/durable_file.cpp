#include <cerrno>
#include <fstream>
#include <string_view>
#include <vector>

#include <fcntl.h>

#include <gradtile/core/check.h>
#include <gradtile/core/io/durable_file.h>
#include <gradtile/core/text/with_source.h>

namespace gradtile {

namespace {

constexpr std::string_view mark = ".tmp-";
constexpr std::size_t random_bytes = 8;

std::filesystem::path directory_of(const std::filesystem::path& path) {
    return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// Removes a temporary if no writer has locked it. Failures are ignored: they only leave the file.
void remove_if_stale(FileSystem& fs, const std::filesystem::path& path,
                     const std::function<void(const std::filesystem::path&)>& before_removal) {
    int descriptor = fs.open(path, O_RDWR | O_NOFOLLOW, 0);
    const bool is_directory = descriptor == -EISDIR;
    if (is_directory) descriptor = fs.open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (descriptor < 0) return;
    const OpenFile file(fs, descriptor);
    if (fs.lock(descriptor) != 0) return;
    if (before_removal) before_removal(path);
    if (is_directory) {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    } else if (fs.size(descriptor) >= 0) {  // a regular file
        fs.remove(path);
    }
}

void write_directly(const std::string& path, std::initializer_list<std::span<const std::byte>> parts) {
    std::ofstream stream(path, std::ios::binary);
    for (const std::span<const std::byte> part : parts)
        stream.write(reinterpret_cast<const char*>(part.data()), static_cast<std::streamsize>(part.size()));
    stream.close();
    if (!stream.good()) file_check(-std::int64_t{errno}, "write");
}

}  // namespace

void remove_stale_temporaries(FileSystem& fs, const std::filesystem::path& final_path,
                              const std::function<void(const std::filesystem::path&)>& before_removal) {
    const std::filesystem::path directory = directory_of(final_path);
    std::vector<std::string> names;
    if (fs.list(directory, names) < 0) return;
    for (const std::string& name : names)
        if (DurableFile::final_path_of(name) == final_path.filename())
            remove_if_stale(fs, directory / name, before_removal);
}

LockedTemporary::LockedTemporary(FileSystem& fs, const std::filesystem::path& final_path,
                                 const std::function<void(const std::filesystem::path&)>& create) {
    remove_stale_temporaries(fs, final_path);
    constexpr int attempts = 100;
    for (int attempt = 0; attempt < attempts; ++attempt) {
        path_ = DurableFile::temporary_for(final_path);
        on_signal_ = RemovedOnSignal(path_);
        create(path_);
        // The lock has its own open file: the writer closes its file before the rename, and the temporary
        // must stay locked until then.
        const int descriptor = fs.open(path_, O_RDONLY, 0);
        if (descriptor == -ENOENT) continue;  // another process took it for one that was left behind
        if (descriptor < 0) return;           // without a lock, but nothing is wrong with the file
        lock_ = OpenFile(fs, descriptor);
        const int locked = fs.lock(descriptor);
        if (locked == -EWOULDBLOCK) continue;
        if (locked != 0 || fs.has_name(descriptor, path_)) return;
    }
    throw Error("other processes remove its temporary files");
}

DurableFile::DurableFile(std::filesystem::path final_path, FileSystem& fs, Existing existing)
    : fs_(fs),
      final_path_(std::move(final_path)),
      existing_(existing),
      temporary_(fs_, final_path_, [this](const std::filesystem::path& path) {
          check(existing_ == Existing::replace || !std::filesystem::exists(symlink_status(final_path_)),
                "exists already");
          // O_EXCL: does not write to an existing file, which another user may have prepared.
          file_ = OpenFile(fs_, path, O_RDWR | O_CREAT | O_EXCL);
      }) {}

DurableFile::~DurableFile() {
    if (!renamed_) fs_.remove(temporary_.path());
}

void DurableFile::reserve(std::uint64_t bytes) {
    const int result = fs_.reserve(file_.descriptor(), bytes);
    if (result == -EOPNOTSUPP || result == -ENOSYS) return;
    file_check(result, "reserve disk space");
}

void DurableFile::write(const std::filesystem::path& path, std::string_view text, Sync sync) {
    DurableFile file(path);
    file.file().write(reinterpret_cast<const std::byte*>(text.data()), text.size(), 0);
    file.commit(text.size(), sync);
}

void DurableFile::commit(std::uint64_t size, Sync sync) {
    file_check(fs_.truncate(file_.descriptor(), size), "truncate");
    if (sync == Sync::file_and_directory) file_.sync();
    file_.close();
    const std::filesystem::path& temporary = temporary_.path();
    int named = -EOPNOTSUPP;
    if (existing_ == Existing::refuse) named = fs_.link(temporary, final_path_);
    if (no_links(named)) {
        named = existing_ == Existing::replace ? fs_.rename(temporary, final_path_)
                                               : fs_.rename_new(temporary, final_path_);
        renamed_ = named == 0;
    }
    check(named != -EEXIST, "exists already");
    file_check(named, "rename into place");
    if (sync == Sync::file_and_directory) sync_directory(fs_, final_path_.parent_path());
}

std::filesystem::path DurableFile::temporary_for(const std::filesystem::path& path) {
    std::filesystem::path temporary = path;
    temporary += concat(mark, random_hex(random_bytes));
    return temporary;
}

std::optional<std::filesystem::path> DurableFile::final_path_of(const std::filesystem::path& temporary) {
    const std::string path = temporary.string();
    constexpr std::size_t suffix = mark.size() + 2 * random_bytes;
    if (path.size() < suffix) return std::nullopt;
    const std::string_view end = std::string_view(path).substr(path.size() - suffix);
    if (!end.starts_with(mark) ||
        end.find_first_not_of("0123456789abcdef", mark.size()) != std::string_view::npos)
        return std::nullopt;
    return path.substr(0, path.size() - suffix);
}

bool DurableFile::is_temporary(const std::filesystem::path& path) {
    return path.filename().string().find(mark) != std::string::npos;
}

WholeFile::WholeFile(const std::string& path, std::initializer_list<std::span<const std::byte>> parts)
    : path_(path) {
    const bool exists = std::filesystem::exists(path);
    with_source(path_, [&] {
        check(!std::filesystem::is_directory(path), "is a directory; expected a file");
        if (exists && !std::filesystem::is_regular_file(path)) return write_directly(path, parts);
        file_.emplace(exists ? std::filesystem::canonical(path) : std::filesystem::path(path));
        for (const std::span<const std::byte> part : parts) {
            file_->file().write(part.data(), part.size(), size_);
            size_ += part.size();
        }
    });
}

void WholeFile::commit() {
    with_source(path_, [&] {
        if (file_) file_->commit(size_, DurableFile::Sync::none);
    });
}

}  // namespace gradtile
