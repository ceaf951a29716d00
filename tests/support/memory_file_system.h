#pragma once
/// File systems for tests: one in memory that logs every operation and computes possible states after a
/// crash, and one that fails chosen calls.
#include <fcntl.h>

#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gradtile/core/io/file_system.h>

namespace gradtile::test {

/// Files in memory. A path is a plain name; a directory must be created before its files.
class MemoryFileSystem final : public FileSystem {
  public:
    /// One call that changes the file system.
    struct Operation {
        enum class Kind { write, truncate, sync, create, rename, link, remove, marker };
        Kind kind;
        int node = 0;                        ///< the file's number, or the synced directory's
        std::string name = {}, target = {};  ///< create, link, remove: name; rename, link: name -> target
        std::uint64_t offset = 0;            ///< for a truncation the size; for a marker its number
        std::vector<std::byte> data = {};
    };

    MemoryFileSystem() { nodes_[kRoot] = {.is_directory = true}; }

    const std::vector<Operation>& operations() const { return log_; }
    /// Adds a marker to the operation log.
    void mark(std::uint64_t number) { log_.push_back({.kind = Operation::Kind::marker, .offset = number}); }
    /// Creates a file without a log entry.
    void put(const std::string& name, std::vector<std::byte> data) {
        names_[name] = next_node_;
        nodes_[next_node_++].data = std::move(data);
    }
    std::vector<std::byte> bytes(const std::string& name) const { return nodes_.at(names_.at(name)).data; }
    bool exists(const std::string& name) const { return names_.contains(name); }

    /// A possible state after a crash that follows the first `count` operations. Operations that were
    /// followed by a sync of their file (data) or directory (names) are applied. Others are applied only
    /// where `is_applied(index)` is true; it is called once for each data sector (512 bytes).
    static std::unique_ptr<MemoryFileSystem> after_crash(const std::vector<Operation>& log, std::size_t count,
                                                         const std::function<bool(std::size_t)>& is_applied);

    int open(const std::filesystem::path& path, int flags, int) override;
    int close(int file) override { return open_.erase(file) == 1 ? 0 : -EBADF; }
    std::int64_t read_at(int file, std::byte* data, std::size_t bytes, std::uint64_t offset) override;
    std::int64_t write_at(int file, const std::byte* data, std::size_t bytes, std::uint64_t offset) override;
    std::int64_t size(int file) override {
        const Node& node = nodes_.at(open_.at(file));
        return node.is_directory ? -EINVAL : static_cast<std::int64_t>(node.data.size());
    }
    int reserve(int, std::uint64_t) override { return 0; }
    int truncate(int file, std::uint64_t bytes) override {
        return apply({.kind = Operation::Kind::truncate, .node = open_.at(file), .offset = bytes});
    }
    int start_writeback(int, std::uint64_t, std::uint64_t) override { return 0; }
    int sync(int file) override { return apply({.kind = Operation::Kind::sync, .node = open_.at(file)}); }
    int rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
    int rename_new(const std::filesystem::path& from, const std::filesystem::path& to) override {
        return exists(to.string()) ? -EEXIST : rename(from, to);
    }
    int lock(int) override { return 0; }
    bool has_name(int file, const std::filesystem::path& path) override {
        const auto found = names_.find(path.string());
        return found != names_.end() && found->second == open_.at(file);
    }
    int link(const std::filesystem::path& from, const std::filesystem::path& to) override;
    int remove(const std::filesystem::path& path) override;
    int make_directory(const std::filesystem::path& path) override;
    int list(const std::filesystem::path& path, std::vector<std::string>& names) override;

  private:
    static constexpr int kRoot = 0;
    struct Node {
        bool is_directory = false;
        std::vector<std::byte> data{};
    };
    static std::string parent_of(const std::string& name) {
        const std::size_t slash = name.rfind('/');
        return slash == std::string::npos ? std::string() : name.substr(0, slash);
    }
    int apply(Operation operation) {
        perform(operation);
        log_.push_back(std::move(operation));
        return 0;
    }
    void perform(const Operation& operation);

    std::map<std::string, int> names_ = {{"", kRoot}};
    std::map<int, Node> nodes_;
    std::map<int, int> open_;  // descriptor -> node
    int next_node_ = 1;
    int next_file_ = 3;
    std::vector<Operation> log_;
};

inline int MemoryFileSystem::open(const std::filesystem::path& path, int flags, int) {
    const std::string name = path.string() == "." ? "" : path.string();
    const auto found = names_.find(name);
    int node = 0;
    if (found != names_.end()) {
        node = found->second;
        if ((flags & O_TRUNC) != 0) apply({.kind = Operation::Kind::truncate, .node = node});
    } else {
        if ((flags & O_CREAT) == 0 || !names_.contains(parent_of(name))) return -ENOENT;
        node = next_node_++;
        apply({.kind = Operation::Kind::create, .node = node, .name = name});
    }
    open_[next_file_] = node;
    return next_file_++;
}

inline std::int64_t MemoryFileSystem::read_at(int file, std::byte* data, std::size_t bytes,
                                              std::uint64_t offset) {
    const Node& node = nodes_.at(open_.at(file));
    if (node.is_directory) return -EISDIR;
    if (offset >= node.data.size()) return 0;
    const std::size_t count = std::min<std::size_t>(bytes, node.data.size() - offset);
    std::copy_n(node.data.begin() + static_cast<std::ptrdiff_t>(offset), count, data);
    return static_cast<std::int64_t>(count);
}

inline std::int64_t MemoryFileSystem::write_at(int file, const std::byte* data, std::size_t bytes,
                                               std::uint64_t offset) {
    apply({.kind = Operation::Kind::write,
           .node = open_.at(file),
           .offset = offset,
           .data = {data, data + bytes}});
    return static_cast<std::int64_t>(bytes);
}

inline int MemoryFileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
    const auto found = names_.find(from.string());
    if (found == names_.end()) return -ENOENT;
    const auto target = names_.find(to.string());
    if (target != names_.end() && target->second == found->second) return 0;  // required by POSIX
    return apply({.kind = Operation::Kind::rename,
                  .node = found->second,
                  .name = from.string(),
                  .target = to.string()});
}

inline int MemoryFileSystem::link(const std::filesystem::path& from, const std::filesystem::path& to) {
    const auto found = names_.find(from.string());
    if (found == names_.end()) return -ENOENT;
    if (names_.contains(to.string())) return -EEXIST;
    return apply(
        {.kind = Operation::Kind::link, .node = found->second, .name = from.string(), .target = to.string()});
}

inline int MemoryFileSystem::remove(const std::filesystem::path& path) {
    const auto found = names_.find(path.string());
    if (found == names_.end()) return -ENOENT;
    return apply({.kind = Operation::Kind::remove, .node = found->second, .name = path.string()});
}

inline int MemoryFileSystem::make_directory(const std::filesystem::path& path) {
    if (names_.contains(path.string())) return -EEXIST;
    if (!names_.contains(parent_of(path.string()))) return -ENOENT;
    const int node = next_node_++;
    apply({.kind = Operation::Kind::create, .node = node, .name = path.string()});
    nodes_[node].is_directory = true;
    return 0;
}

inline int MemoryFileSystem::list(const std::filesystem::path& path, std::vector<std::string>& names) {
    names.clear();
    if (!names_.contains(path.string())) return -ENOENT;
    for (const auto& [name, node] : names_) {
        if (node != kRoot && parent_of(name) == path.string()) {
            names.push_back(std::filesystem::path(name).filename().string());
        }
    }
    return 0;
}

inline void MemoryFileSystem::perform(const Operation& operation) {
    std::vector<std::byte>& data = nodes_[operation.node].data;
    switch (operation.kind) {
        case Operation::Kind::write:
            data.resize(std::max<std::size_t>(data.size(), operation.offset + operation.data.size()));
            std::copy(operation.data.begin(), operation.data.end(),
                      data.begin() + static_cast<std::ptrdiff_t>(operation.offset));
            break;
        case Operation::Kind::truncate:
            data.resize(operation.offset);
            break;
        case Operation::Kind::create:
            names_[operation.name] = operation.node;
            break;
        case Operation::Kind::rename:
            names_.erase(operation.name);
            names_[operation.target] = operation.node;
            break;
        case Operation::Kind::link:
            names_[operation.target] = operation.node;
            break;
        case Operation::Kind::remove:
            names_.erase(operation.name);
            break;
        case Operation::Kind::sync:
        case Operation::Kind::marker:
            break;
    }
}

inline std::unique_ptr<MemoryFileSystem> MemoryFileSystem::after_crash(
    const std::vector<Operation>& log, std::size_t count,
    const std::function<bool(std::size_t)>& is_applied) {
    constexpr std::size_t sector_bytes = 512;
    // Directory name -> node; syncing the node makes the names in that directory durable.
    std::map<std::string, int> directories = {{"", kRoot}};
    for (const Operation& operation : log) {
        if (operation.kind == Operation::Kind::create) directories[operation.name] = operation.node;
    }
    const auto durable = [&](std::size_t index, int node) {
        for (std::size_t later = index + 1; later < count; ++later) {
            if (log[later].kind == Operation::Kind::sync && log[later].node == node) return true;
        }
        return false;
    };

    auto left = std::make_unique<MemoryFileSystem>();
    for (std::size_t i = 0; i < count; ++i) {
        const Operation& operation = log[i];
        switch (operation.kind) {
            case Operation::Kind::write: {
                if (durable(i, operation.node)) {
                    left->perform(operation);
                    break;
                }
                for (std::size_t begin = 0; begin < operation.data.size(); begin += sector_bytes) {
                    if (!is_applied(i)) continue;
                    const auto sector_begin = operation.data.begin() + static_cast<std::ptrdiff_t>(begin);
                    const auto length = std::min(sector_bytes, operation.data.size() - begin);
                    left->perform(
                        {.kind = Operation::Kind::write,
                         .node = operation.node,
                         .offset = operation.offset + begin,
                         .data = {sector_begin, sector_begin + static_cast<std::ptrdiff_t>(length)}});
                }
                break;
            }
            case Operation::Kind::truncate:
                if (durable(i, operation.node) || is_applied(i)) left->perform(operation);
                break;
            case Operation::Kind::create:
            case Operation::Kind::rename:
            case Operation::Kind::link:
            case Operation::Kind::remove: {
                const std::string& name = operation.target.empty() ? operation.name : operation.target;
                if (durable(i, directories.at(parent_of(name))) || is_applied(i)) left->perform(operation);
                break;
            }
            case Operation::Kind::sync:
            case Operation::Kind::marker:
                break;
        }
        left->nodes_[operation.node];  // creates the file even if no data was written to the file
    }
    // If a directory is lost, the names in it are lost, too.
    std::erase_if(left->names_, [&](const auto& entry) {
        for (std::string up = entry.first; !up.empty();) {
            up = parent_of(up);
            if (!left->names_.contains(up)) return true;
        }
        return false;
    });
    return left;
}

/// Forwards every call to another file system unless `fault` makes it fail.
class FaultyFileSystem final : public FileSystem {
  public:
    enum class Call {
        open,
        close,
        read_at,
        write_at,
        size,
        reserve,
        truncate,
        free_bytes,
        start_writeback,
        sync,
        rename,
        lock,
        link,
        remove,
        make_directory,
        list
    };
    /// Returns 0 to forward the call, or the error that the call returns instead. For a read or write a
    /// positive number limits the bytes that are transferred.
    using Fault = std::function<std::int64_t(Call, std::size_t bytes)>;
    /// Makes a read return 0, as at the end of the file.
    static constexpr std::int64_t end_of_file = INT64_MAX;

    FaultyFileSystem(FileSystem& base, Fault fault) : base_(base), fault_(std::move(fault)) {}

    int open(const std::filesystem::path& path, int flags, int mode) override {
        return answer(Call::open, [&] { return base_.open(path, flags, mode); });
    }
    int close(int file) override {
        const int closed = base_.close(file);  // a failing close() closes the file too
        return answer(Call::close, [&] { return closed; });
    }
    std::int64_t read_at(int file, std::byte* data, std::size_t bytes, std::uint64_t offset) override {
        const std::int64_t fault = fault_(Call::read_at, bytes);
        if (fault == end_of_file) return 0;
        if (fault < 0) return fault;
        return base_.read_at(file, data, fault > 0 ? std::min(bytes, static_cast<std::size_t>(fault)) : bytes,
                             offset);
    }
    std::int64_t write_at(int file, const std::byte* data, std::size_t bytes, std::uint64_t offset) override {
        const std::int64_t fault = fault_(Call::write_at, bytes);
        if (fault < 0) return fault;
        return base_.write_at(file, data, fault > 0 ? static_cast<std::size_t>(fault) : bytes, offset);
    }
    std::int64_t size(int file) override {
        const std::int64_t fault = fault_(Call::size, 0);
        return fault < 0 ? fault : base_.size(file);
    }
    int reserve(int file, std::uint64_t bytes) override {
        return answer(Call::reserve, [&] { return base_.reserve(file, bytes); });
    }
    int truncate(int file, std::uint64_t bytes) override {
        return answer(Call::truncate, [&] { return base_.truncate(file, bytes); });
    }
    std::int64_t free_bytes(const std::filesystem::path& path) override {
        const std::int64_t fault = fault_(Call::free_bytes, 0);
        return fault < 0 ? fault : base_.free_bytes(path);
    }
    int start_writeback(int file, std::uint64_t offset, std::uint64_t bytes) override {
        return answer(Call::start_writeback, [&] { return base_.start_writeback(file, offset, bytes); });
    }
    int sync(int file) override {
        return answer(Call::sync, [&] { return base_.sync(file); });
    }
    int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
        return answer(Call::rename, [&] { return base_.rename(from, to); });
    }
    int rename_new(const std::filesystem::path& from, const std::filesystem::path& to) override {
        return answer(Call::rename, [&] { return base_.rename_new(from, to); });
    }
    int lock(int file) override {
        return answer(Call::lock, [&] { return base_.lock(file); });
    }
    bool has_name(int file, const std::filesystem::path& path) override { return base_.has_name(file, path); }
    int link(const std::filesystem::path& from, const std::filesystem::path& to) override {
        return answer(Call::link, [&] { return base_.link(from, to); });
    }
    int remove(const std::filesystem::path& path) override {
        return answer(Call::remove, [&] { return base_.remove(path); });
    }
    int make_directory(const std::filesystem::path& path) override {
        return answer(Call::make_directory, [&] { return base_.make_directory(path); });
    }
    int list(const std::filesystem::path& path, std::vector<std::string>& names) override {
        return answer(Call::list, [&] { return base_.list(path, names); });
    }

  private:
    template <class Base>
    int answer(Call call, Base&& base) {
        const std::int64_t fault = fault_(call, 0);
        return fault < 0 ? static_cast<int>(fault) : base();
    }

    FileSystem& base_;
    Fault fault_;
};

}  // namespace gradtile::test
