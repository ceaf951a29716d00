#include <gradtile/train/checkpoint/checkpoint_directory.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include <gradtile/core/check.h>
#include <gradtile/core/io/durable_file.h>
#include <gradtile/train/checkpoint/checkpoint_names.h>
#include <gradtile/train/checkpoint/internal/part_set.h>

namespace gradtile {

CheckpointDirectory::CheckpointDirectory(std::filesystem::path path, RetentionPolicy retention,
                                         FileSystem& fs)
    : path_(std::move(path)), retention_(retention), fs_(&fs) {
    check(retention.keep_last >= 1, "keep-last is ", retention.keep_last, ", expected at least 1");
    check(retention.keep_every >= 0, "keep-every is ", retention.keep_every, ", expected 0 or more");
}

std::filesystem::path CheckpointDirectory::path_of(std::int64_t step) const {
    return path_ / step_file_name(step);
}

std::filesystem::path CheckpointDirectory::path_of(const Checkpoint& checkpoint) const {
    return checkpoint.part ? path_ / part_file_name(checkpoint.step, *checkpoint.part)
                           : path_of(checkpoint.step);
}

std::vector<std::string> CheckpointDirectory::names() const {
    std::vector<std::string> names;
    const int listed = fs_->list(path_, names);
    if (listed != -ENOENT) {
        with_file_name("checkpoints", path_, [&] { file_check(listed, "list the directory"); });
    }
    return names;
}

std::vector<CheckpointDirectory::Entry> CheckpointDirectory::list() const {
    std::vector<Entry> entries;
    for (const std::string& name : names())
        if (const auto step = step_of_file_name(name)) entries.push_back({*step, path_ / name});
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.step > b.step; });
    return entries;
}

bool CheckpointDirectory::is_empty() const {
    return std::ranges::all_of(names(), [](const std::string& name) {
        return DurableFile::is_temporary(name) || is_part_file_name(name);
    });
}

CheckpointDirectory::Saved CheckpointDirectory::save(const Checkpoint& checkpoint, bool best) const {
    with_file_name("checkpoints", path_, [&] { make_directories(*fs_, path_); });
    write_checkpoint(path_of(checkpoint), checkpoint, *fs_);
    Saved saved;
    if (checkpoint.part) return saved;
    try {
        if (best) mark_best(checkpoint);
        saved.is_best = best;
        apply_retention(checkpoint.step);
        remove_unlisted_parts();
    } catch (const Error& failure) {
        saved.problem = failure.what();
    }
    return saved;
}

void CheckpointDirectory::mark_best(const Checkpoint& checkpoint) const {
    const std::filesystem::path step_file = path_of(checkpoint.step);
    const std::filesystem::path temporary = DurableFile::temporary_for(best_path());
    // best.h5 is a second name (hard link) for the same file, so retention may remove the first name.
    const int linked = fs_->link(step_file, temporary);
    if (no_links(linked)) {
        write_checkpoint(best_path(), checkpoint, *fs_);
        return;
    }
    with_file_name("checkpoint", best_path(), [&] {
        file_check(linked, "link");
        const int renamed = fs_->rename(temporary, best_path());
        // If both names already are the same file, rename() removes neither.
        fs_->remove(temporary);
        file_check(renamed, "rename into place");
        sync_directory(*fs_, path_);
    });
}

void CheckpointDirectory::apply_retention(std::int64_t saved_step) const {
    std::int64_t kept = 0;
    for (const Entry& entry : list()) {
        if (entry.step > saved_step || kept++ < retention_.keep_last) continue;
        if (retention_.keep_every > 0 && entry.step % retention_.keep_every == 0) continue;
        with_file_name("checkpoint", entry.path, [&] { file_check(fs_->remove(entry.path), "remove"); });
    }
}

std::vector<CheckpointDirectory::Entry> CheckpointDirectory::candidates(
    std::vector<std::string>& damaged) const {
    std::vector<Entry> entries = list();
    const std::vector<std::string> all = names();
    if (std::find(all.begin(), all.end(), best_path().filename()) == all.end()) return entries;
    try {
        with_file_name("checkpoint", best_path(), [&] {
            const OpenFile file = open_regular_file(*fs_, best_path(), SymbolicLinks::refuse);
            const std::int64_t step = read_header(file).step;
            // If best.h5 and a step file have the same step, the step file comes first, because it is the
            // usual name.
            const auto place = std::find_if(entries.begin(), entries.end(),
                                            [step](const Entry& entry) { return entry.step < step; });
            entries.insert(place, {step, best_path()});
        });
    } catch (const Error& error) {
        damaged.push_back(error.what());
    }
    return entries;
}

CheckpointDirectory::Loaded CheckpointDirectory::load_newest(ReadOptions options) const {
    options.follow_links = false;
    // A running process may remove files after they were listed. It removes a file only after it has saved a
    // newer one, which another look at the directory finds.
    constexpr int max_looks = 100;
    for (int look = 1;; ++look) {
        bool was_removed = false;
        Loaded loaded = load_listed(options, was_removed);
        if (loaded.checkpoint || !was_removed || look == max_looks) return loaded;
    }
}

CheckpointDirectory::Loaded CheckpointDirectory::load_listed(const ReadOptions& options,
                                                             bool& was_removed) const {
    Loaded loaded;
    for (const Entry& entry : candidates(loaded.damaged)) {
        try {
            Checkpoint checkpoint = read_checkpoint(entry.path, options, *fs_);
            check(checkpoint.step == entry.step, "checkpoint ", entry.path.string(), ": holds step ",
                  checkpoint.step);
            loaded.checkpoint = std::move(checkpoint);
            loaded.path = entry.path;
            break;
        } catch (const Error& error) {
            const bool is_there = exists(symlink_status(entry.path));
            was_removed = was_removed || !is_there;
            if (is_there) loaded.damaged.push_back(error.what());
        }
    }
    return loaded;
}

PartFile CheckpointDirectory::describe(const Checkpoint& part) const {
    const std::filesystem::path path = path_of(part);
    return with_file_name("checkpoint", path, [&] {
        return describe_part(open_regular_file(*fs_, path, SymbolicLinks::refuse));
    });
}

void CheckpointDirectory::remove_unlisted_parts() const {
    std::vector<std::string> mains;
    std::set<std::string> unlisted;
    for (const std::string& name : names()) {
        if (is_part_file_name(name)) unlisted.insert(name);
        if (step_of_file_name(name) || name == best_path().filename()) mains.push_back(name);
    }
    if (unlisted.empty()) return;
    for (const std::string& name : mains) {
        const CheckpointContents contents = with_file_name("checkpoint", path_ / name, [&] {
            return read_contents(open_regular_file(*fs_, path_ / name, SymbolicLinks::refuse));
        });
        if (!contents.manifest.parts) continue;
        const auto& [save, files] = *contents.manifest.parts;
        for (std::int64_t i = 0; i < std::ssize(files); ++i)
            unlisted.erase(part_file_name(contents.header.step,
                                          {.save = save, .number = i, .count = std::ssize(files)}));
    }
    for (const std::string& name : unlisted)
        with_file_name("part", path_ / name, [&] { file_check(fs_->remove(path_ / name), "remove"); });
}

void CheckpointDirectory::remove_temporaries() const {
    for (const std::string& name : names()) {
        if (DurableFile::is_temporary(name)) fs_->remove(path_ / name);
    }
    try {
        remove_unlisted_parts();
    } catch (const Error&) {
        // A main file that cannot be read may list parts, so all parts stay.
    }
}

}  // namespace gradtile
