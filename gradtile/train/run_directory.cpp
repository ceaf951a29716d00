#include <gradtile/train/run_directory.h>

#include <nlohmann/json.hpp>

#include <gradtile/core/json_value.h>
#include <gradtile/train/durable_file.h>

namespace gradtile {

void write_text_file(const std::filesystem::path& path, const std::string& text) {
    with_file_name("file", path, [&] {
        DurableFile file(path);
        file.file().write(reinterpret_cast<const std::byte*>(text.data()), text.size(), 0);
        file.commit(text.size());
    });
}

RunDirectory RunDirectory::create(const TrainConfig& config) {
    const std::filesystem::path path = config.out;
    try {
        make_directories(FileSystem::posix(), path);
    } catch (const Error& error) {
        throw Error(concat("out: '", path.string(), "': ", error.what()));
    }
    check(is_directory(path), "out: '", path.string(), "' is not a directory");
    RunDirectory run(path);
    for (const std::filesystem::path& trace : {run.config_file(), run.metrics_file(), run.checkpoints()})
        check(!exists(trace), "out: '", path.string(), "' already holds a run; go on with --resume ",
              path.string(), " or choose another --out");
    write_text_file(run.config_file(), json_text(to_json(config), 2) + '\n');
    return run;
}

RunDirectory RunDirectory::open(const std::filesystem::path& path) {
    check(is_directory(path), "resume: '", path.string(), "' is not a directory");
    check(exists(path / "config.json") || exists(path / "checkpoints"), "resume: '", path.string(),
          "' holds no run");
    return RunDirectory(path);
}

TrainConfig RunDirectory::config() const {
    TrainConfig config;
    apply_config_file(config, config_file().string());
    return config;
}

}  // namespace gradtile
