#include <fcntl.h>

#include <optional>

#include <gradtile/core/check.h>
#include <gradtile/core/io/durable_file.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/checkpoint/checkpoint_reader.h>
#include <gradtile/train/checkpoint/checkpoint_version_1.h>
#include <gradtile/train/checkpoint/internal/confined_child.h>
#include <gradtile/train/run/checkpoint_conversion.h>
#include <gradtile/train/run/run_directory.h>

namespace gradtile {

namespace {

// Returns limits that are not reached when an undamaged checkpoint is read and written again. Memory holds
// the file's tensors, the stacks and buffers of a few threads, and in libhdf5 up to two copies of the largest
// chunk. One chunk may be as large as the file.
ProcessLimits limits_for(std::uint64_t file_bytes) {
    constexpr std::uint64_t kMemory = std::uint64_t{512} << 20;
    constexpr std::uint64_t kSeconds = 60;
    constexpr std::uint64_t kSlowestBytesPerSecond = std::uint64_t{4} << 20;
    return {.memory_bytes = kMemory + 4 * file_bytes,
            .cpu_seconds = kSeconds + file_bytes / kSlowestBytesPerSecond};
}

// Copies everything except the checkpoints and the files that only a running process needs.
void copy_other_files(const std::filesystem::path& old_run, DurableDirectory& new_run) {
    for (const auto& entry : std::filesystem::directory_iterator(old_run)) {
        const std::filesystem::path name = entry.path().filename();
        if (entry.is_symlink() || !entry.is_regular_file() || name == ".lock" ||
            DurableFile::is_temporary(name))
            continue;
        with_file_name("file", entry.path(), [&] {
            new_run.remove_on_signal(new_run.path() / name);
            copy_file(entry.path(), new_run.path() / name);
            OpenFile(FileSystem::posix(), new_run.path() / name, O_RDWR).sync();
        });
    }
}

// best.h5 is usually a second name of a step's file.
bool link_to_converted(const std::filesystem::path& old_best, const CheckpointDirectory& converted,
                       const std::vector<CheckpointDirectory::Entry>& old_files) {
    for (const CheckpointDirectory::Entry& old_file : old_files) {
        const std::filesystem::path new_file = converted.path_of(old_file.step);
        if (!equivalent(old_file.path, old_best) || !exists(new_file)) continue;
        with_file_name("checkpoint", converted.best_path(), [&] {
            file_check(FileSystem::posix().link(new_file, converted.best_path()), "link");
            sync_directory(FileSystem::posix(), converted.best_path().parent_path());
        });
        return true;
    }
    return false;
}

void convert_checkpoints(const std::filesystem::path& old_run, DurableDirectory& new_run,
                         ConvertedRun& result) {
    const CheckpointDirectory converted(RunDirectory::checkpoints_of(new_run.path()));
    const auto convert = [&](const std::filesystem::path& old_file, const std::filesystem::path& new_file) {
        new_run.remove_on_signal(new_file);
        try {
            convert_checkpoint(old_file, new_file, SymbolicLinks::refuse);
            result.files.push_back(new_file);
        } catch (const Error& error) {
            result.damaged.push_back(error.what());
        }
    };
    const CheckpointDirectory old_checkpoints(RunDirectory::checkpoints_of(old_run));
    const std::vector<CheckpointDirectory::Entry> old_files = old_checkpoints.list();
    for (const CheckpointDirectory::Entry& entry : old_files)
        convert(entry.path, converted.path_of(entry.step));
    new_run.remove_on_signal(converted.best_path());
    if (exists(old_checkpoints.best_path()) &&
        !link_to_converted(old_checkpoints.best_path(), converted, old_files)) {
        convert(old_checkpoints.best_path(), converted.best_path());
    }
    check(!result.files.empty(), old_run.string(), ": holds no sound checkpoint of format version 1",
          result.damaged.empty() ? "" : "; ", result.damaged.empty() ? "" : result.damaged.front());
}

// Replaces the temporary directory in a text by the directory that the user gave.
std::string with_final_name(std::string text, const DurableDirectory& made,
                            const std::filesystem::path& final_path) {
    const std::string temporary = made.path().string();
    for (std::size_t at = 0; (at = text.find(temporary, at)) != std::string::npos;)
        text.replace(at, temporary.size(), final_path.string());
    return text;
}

}  // namespace

void convert_checkpoint(const std::filesystem::path& old_file, const std::filesystem::path& new_file,
                        SymbolicLinks links) {
    FileSystem& fs = FileSystem::posix();
    const std::uint64_t bytes =
        with_file_name("checkpoint", old_file, [&] { return open_regular_file(fs, old_file, links).size(); });
    check(!exists(symlink_status(new_file)), "checkpoint ", new_file.string(), ": exists already");
    const ChildOutcome outcome = run_confined(limits_for(bytes), [&] {
        write_checkpoint(new_file, read_version_1(old_file, links), fs, Existing::refuse);
    });
    if (outcome.error.empty()) return;
    remove_stale_temporaries(fs, new_file);  // that of a child that was killed
    check(outcome.ended_by.empty(), "checkpoint ", old_file.string(), ": damaged: libhdf5 was ended by ",
          outcome.ended_by, " while it read the file");
    throw Error(outcome.error);
}

ConvertedRun convert_run(const std::filesystem::path& old_run, const std::filesystem::path& new_run) {
    check(is_directory(RunDirectory::checkpoints_of(old_run)), old_run.string(), ": holds no run");
    check(!exists(symlink_status(new_run)), new_run.string(), ": exists already");
    const RunLock lock(old_run);
    ConvertedRun result;
    const std::filesystem::path final_path = new_run.has_filename() ? new_run : new_run.parent_path();
    std::optional<DurableDirectory> made;
    with_file_name("run", final_path, [&] {
        if (final_path.has_parent_path()) make_directories(FileSystem::posix(), final_path.parent_path());
        made.emplace(final_path);
        made->remove_on_signal(RunDirectory::checkpoints_of(made->path()));
        make_directories(FileSystem::posix(), RunDirectory::checkpoints_of(made->path()));
    });
    try {
        copy_other_files(old_run, *made);
        convert_checkpoints(old_run, *made, result);
    } catch (const Error& error) {
        throw Error(with_final_name(error.what(), *made, final_path), error.where());
    }
    for (std::string& line : result.damaged) line = with_final_name(line, *made, final_path);
    for (std::filesystem::path& file : result.files)
        file = final_path / file.lexically_relative(made->path());
    with_file_name("run", final_path, [&] { made->commit(); });
    return result;
}

}  // namespace gradtile
