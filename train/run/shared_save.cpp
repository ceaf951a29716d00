#include <gradtile/train/run/shared_save.h>

#include <fcntl.h>

#include <utility>

#include <gradtile/core/io/durable_file.h>
#include <gradtile/core/text/json_reader.h>

namespace gradtile {
namespace {

// Members of a rank's status. A rank whose part is still being written has neither.
constexpr const char* error_key = "error";
constexpr const char* bytes_key = "bytes";
constexpr const char* checksum_key = "header_crc32c";

}  // namespace

void SharedSave::start(Checkpoint part, Checkpoint main, std::vector<TensorInfo> tensors, bool best) {
    finish();
    for (SaveReport& report : poll()) reports_.push_back(std::move(report));
    constexpr std::size_t number_bytes = 8;
    const std::string number = group_.broadcast(random_hex(number_bytes));
    const std::uint64_t save = std::stoull(number, nullptr, 16);
    part.part = {.save = save, .number = group_.rank(), .count = group_.size()};
    writer_.save(part);
    for (const char* group : {"params", "master", "optimizer"}) tensors_of(part, group).clear();
    main.parts = CheckpointParts{{save, {}}, std::move(tensors)};
    pending_ = {.main = std::move(main), .part = std::move(part), .best = best};
}

/// Returns what this rank reports of its part.
std::string SharedSave::status() {
    Pending& pending = *pending_;
    for (SaveReport& report : writer_.poll()) pending.written = std::move(report);
    JsonValue status = JsonValue::object();
    if (!pending.written) return status.dump();
    try {
        check(pending.written->saved, pending.written->message);
        const PartFile file = writer_.directory().describe(pending.part);
        status.set(bytes_key, file.bytes);
        status.set(checksum_key, file.header_crc32c);
    } catch (const Error& error) {
        status.set(error_key, error.what());
    }
    return status.dump();
}

void SharedSave::advance() {
    if (!pending_) return;
    std::vector<JsonValue> statuses;
    for (const std::string& text : group_.all_gather(status()))
        statuses.push_back(parse_json(text, concat("the save of rank ", statuses.size())));
    for (const JsonValue& found : statuses)
        if (!found.contains(bytes_key) && !found.contains(error_key)) return;
    Pending ended = *std::exchange(pending_, std::nullopt);
    if (!group_.is_root()) return;
    part_seconds_ = ended.written->copy_seconds + ended.written->write_seconds;
    std::vector<PartFile>& files = ended.main.parts->table.files;
    for (const JsonValue& found : statuses) {
        if (found.contains(error_key)) {
            fail({.step = ended.main.step,
                  .path = writer_.directory().path_of(ended.main),
                  .best = ended.best,
                  .message = concat("rank ", files.size(), ": ", found[error_key].text())});
            return;
        }
        files.push_back({found[bytes_key].get<std::uint64_t>(), found[checksum_key].get<std::uint32_t>()});
    }
    writer_.save_in_place(std::move(ended.main), ended.best);
}

void SharedSave::finish() {
    writer_.wait();
    advance();
    writer_.wait();
}

std::optional<SaveReport> SharedSave::abandon() {
    if (!pending_) return std::nullopt;
    writer_.wait();
    (void)writer_.poll();  // this rank's part
    const Pending ended = *std::exchange(pending_, std::nullopt);
    if (!group_.is_root()) return std::nullopt;
    const std::filesystem::path path = writer_.directory().path_of(ended.main);
    SaveReport report{
        .step = ended.main.step,
        .path = path,
        .best = ended.best,
        .message = concat("checkpoint ", path.string(), ": not saved, because a rank was lost")};
    remove_parts(report);
    return report;
}

std::vector<SaveReport> SharedSave::poll() {
    if (group_.is_root() && !pending_)
        for (SaveReport& report : writer_.poll()) {
            report.write_seconds += part_seconds_;
            if (report.saved) {
                reports_.push_back(std::move(report));
            } else {
                fail(std::move(report));
            }
        }
    return std::exchange(reports_, {});
}

/// Removes the parts of a save that has failed.
void SharedSave::remove_parts(SaveReport& failed) const {
    try {
        writer_.directory().remove_unlisted_parts();
    } catch (const Error& error) {
        failed.message += concat("; its parts remain: ", error.what());
    }
}

void SharedSave::fail(SaveReport report) {
    remove_parts(report);
    reports_.push_back(std::move(report));
}

void require_shared_directory(ProcessGroup& group, const std::filesystem::path& directory) {
    FileSystem& fs = FileSystem::posix();
    std::string name;
    if (group.is_root())
        with_file_name("checkpoints", directory, [&] {
            make_directories(fs, directory);
            name = DurableFile::temporary_for("shared").string();
            OpenFile(fs, directory / name, O_WRONLY | O_CREAT | O_EXCL);
        });
    name = group.broadcast(name);
    const std::filesystem::path path = directory / name;
    const std::vector<std::string> unseen = group.all_gather(exists(path) ? std::string() : path.string());
    if (group.is_root()) fs.remove(path);
    for (std::size_t rank = 0; rank < unseen.size(); ++rank)
        check(unseen[rank].empty(), "checkpoint-parts: rank ", rank, " does not see ", unseen[rank],
              " of rank 0; expected a directory that all ranks share");
}

}  // namespace gradtile
