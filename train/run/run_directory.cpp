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

/// Throws Error when a run's `checkpoints` exists and is neither a directory nor a link of this user to one.
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
    with_file_name("file", path, [&] {
        DurableFile file(path);
        file.file().write(reinterpret_cast<const std::byte*>(text.data()), text.size(), 0);
        file.commit(text.size());
    });
}

RunDirectory RunDirectory::create(const TrainConfig& config, const std::string& identity) {
    const std::filesystem::path path = config.out;
    try {
        make_directories(FileSystem::posix(), path);
    } catch (const Error& error) {
        throw Error(concat("out: '", path.string(), "': ", error.what()));
    }
    check(is_directory(path), "out: '", path.string(), "' is not a directory");
    RunDirectory run(path);
    for (const std::filesystem::path& trace : {run.config_file(), run.metrics_file(), run.checkpoints()}) {
        const std::filesystem::file_status found = symlink_status(trace);
        check(!is_symlink(found), "out: '", trace.string(),
              "' is a symbolic link; expected a directory without a run");
        check(!exists(found), "out: '", path.string(), "' already holds a run; continue it with --resume ",
              path.string(), " or choose another --out");
    }
    run.remove_temporaries();
    // The identity is written first, because config.json makes the directory a run.
    write_text_file(run.identity_file(), JsonValue::object({{"identity", identity}}).dump() + '\n');
    write_text_file(run.config_file(), to_json(config).dump(2) + '\n');
    return run;
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
        const bool of_older_version = name == "loss.svg.tmp";
        if (of_older_version || std::ranges::any_of(own, is_of)) fs.remove(path_ / name);
    }
    CheckpointDirectory(checkpoints()).remove_temporaries();
}

}  // namespace gradtile
