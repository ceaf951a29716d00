#include <gradtile/train/run/run_directory.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <gradtile/core/io/durable_file.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/train/checkpoint/checkpoint_directory.h>

namespace gradtile {

namespace {

constexpr std::size_t identity_bytes = 16;

bool is_identity(const JsonValue& value) {
    if (!value.is_string()) return false;
    const auto& digits = value.text();
    return digits.size() == 2 * identity_bytes &&
           digits.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// Throws Error when a run's `checkpoints` exists and is neither a directory nor this user's link to a
/// directory.
void check_checkpoints_place(const std::filesystem::path& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) return;  // the run has no checkpoint yet
    if (S_ISLNK(status.st_mode)) {
        check(status.st_uid == ::geteuid() || status.st_uid == owner_of_new_files(path.parent_path()),
              path.string(), ": is a symbolic link of user ", status.st_uid, "; expected a link of user ",
              ::geteuid(), ", or a directory");
        check(is_directory(path), path.string(), ": is a symbolic link to ", read_symlink(path).string(),
              ", where there is no directory; is its disk mounted?");
        return;
    }
    check(S_ISDIR(status.st_mode), path.string(), ": is not a directory");
}

}  // namespace

std::string new_run_identity() {
    return random_hex(identity_bytes);
}

void write_text_file(const std::filesystem::path& path, const std::string& text) {
    with_file_name("file", path, [&] { DurableFile::write(path, text); });
}

RunDirectory RunDirectory::create(const TrainConfig& config, const std::string& identity,
                                  std::uint64_t checkpoint_bytes) {
    const std::filesystem::path path = config.out;
    std::optional<SignalsWait> until_registered(std::in_place);
    const bool existed = exists(path);
    try {
        make_directories(FileSystem::posix(), path);
    } catch (const Error& error) {
        throw Error(concat("out: '", path.string(), "': ", error.what()));
    }
    check(is_directory(path), "out: '", path.string(), "' is not a directory");
    const bool was_locked = exists(path / RunLock::file_name);
    RunDirectory run(path);
    run.made_ = !existed;
    try {
        run.require_no_run();
    } catch (...) {
        std::error_code ignored;
        if (!was_locked) std::filesystem::remove(run.lock_.path(), ignored);
        throw;
    }
    for (const std::filesystem::path& own : run.own_paths()) run.on_signal_.emplace_back(own);
    until_registered.reset();
    try {
        run.remove_temporaries();
        run.require_room("out", checkpoint_bytes);
        // The identity is written first, because config.json makes the directory a run.
        write_text_file(run.identity_file(), JsonValue::object({{"identity", identity}}).dump() + '\n');
        write_text_file(run.config_file(), to_json(config).dump(2) + '\n');
    } catch (...) {
        run.discard();
        throw;
    }
    return run;
}

void RunDirectory::require_room(const char* setting, std::uint64_t checkpoint_bytes) const {
    try {
        // `checkpoints` may be a link to another disk.
        require_disk_space(FileSystem::posix(), is_directory(checkpoints()) ? checkpoints() : path_,
                           checkpoint_bytes);
    } catch (const Error& error) {
        throw Error(concat(setting, ": '", path_.string(), "': no room for a checkpoint of ",
                           checkpoint_bytes, " bytes: ", error.what()));
    }
}

/// The files and directories that a run has before its first step, in the order in which they are made.
std::vector<std::filesystem::path> RunDirectory::own_paths() const {
    std::vector<std::filesystem::path> paths;
    if (made_) paths.push_back(path_);
    // The lock is removed after the files: until then no other process makes a run here.
    for (const std::filesystem::path& own :
         {lock_.path(), identity_file(), config_file(), checkpoints(), metrics_file(), loss_curve_file()})
        paths.push_back(own);
    return paths;
}

void RunDirectory::discard() const {
    std::vector<std::filesystem::path> paths = own_paths();
    std::error_code ignored;
    for (auto path = paths.rbegin(); path != paths.rend(); ++path) std::filesystem::remove(*path, ignored);
}

/// Returns whether the directory has a run's settings and identity, but neither a metrics line nor a
/// checkpoint. Other programs' settings may have the same name, and do not count.
bool RunDirectory::was_interrupted_at_start() const {
    std::error_code error;
    if (!CheckpointDirectory(checkpoints()).is_empty() ||
        (exists(metrics_file()) && file_size(metrics_file(), error) != 0))
        return false;
    try {
        config();
        return !identity().empty();
    } catch (const Error&) {
        return false;
    }
}

void RunDirectory::require_no_run() const {
    bool has_trace = false;
    for (const std::filesystem::path& trace : {config_file(), metrics_file(), checkpoints()}) {
        const std::filesystem::file_status found = symlink_status(trace);
        check(!is_symlink(found), "out: '", trace.string(),
              "' is a symbolic link; expected a directory without a run");
        has_trace = has_trace || exists(found);
    }
    check(!has_trace || was_interrupted_at_start(), "out: '", path_.string(),
          "' already holds a run; continue it with --resume ", path_.string(), " or choose another --out");
}

RunDirectory RunDirectory::open(const std::filesystem::path& path) {
    check(is_directory(path), "resume: '", path.string(), "' is not a directory");
    check(exists(path / "config.json") || exists(path / "checkpoints"), "resume: '", path.string(),
          "' holds no run");
    RunDirectory run(path);
    check_checkpoints_place(run.checkpoints());
    return run;
}

TrainConfig RunDirectory::config() const {
    TrainConfig config;
    apply_config_file(config, config_file().string(), SymbolicLinks::refuse);
    return config;
}

std::string RunDirectory::identity() const {
    const std::filesystem::path file = identity_file();
    if (symlink_status(file).type() == std::filesystem::file_type::not_found) return {};
    constexpr std::uint64_t max_bytes = 4096;
    const std::string text = read_text_file(file, max_bytes, SymbolicLinks::refuse);
    const JsonValue object = parse_json_or_null(text);
    check(object.contains("identity") && is_identity(object["identity"]), file.string(),
          ": is not a run's identity; expected {\"identity\": ...} with ", 2 * identity_bytes,
          " hexadecimal digits");
    return object["identity"].get<std::string>();
}

void RunDirectory::remove_temporaries() const {
    FileSystem& fs = FileSystem::posix();
    std::vector<std::string> names;
    with_file_name("directory", path_, [&] { file_check(fs.list(path_, names), "list the directory"); });
    for (const std::string& name : names) {
        const auto is_of = [&](const char* final_name) {
            return name.starts_with(concat(final_name, ".tmp-"));
        };
        const std::array own{".lock", "config.json", "run.json", "metrics.jsonl", "loss.svg"};
        const bool is_outdated = name == "loss.svg.tmp";
        if (is_outdated || std::ranges::any_of(own, is_of)) fs.remove(path_ / name);
    }
    CheckpointDirectory(checkpoints()).remove_temporaries();
}

}  // namespace gradtile
