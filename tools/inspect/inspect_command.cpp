// gradtile inspect: verifies every byte of a checkpoint and lists its contents.
#include <iostream>

#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/json_writer.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/trainer.h>

namespace gradtile::cli {
namespace {

/// Returns the newest valid checkpoint in a run's directory. Damaged newer checkpoints are reported.
std::filesystem::path newest_file(const std::filesystem::path& path) {
    const bool is_run = std::filesystem::is_directory(path / "checkpoints");
    const CheckpointDirectory directory(is_run ? path / "checkpoints" : path);
    const CheckpointDirectory::Loaded newest = directory.load_newest({.training_state = false});
    for (const std::string& line : newest.damaged) print_message(line);
    check(newest.checkpoint.has_value(), path.string(), ": no sound checkpoint");
    return newest.path;
}

/// Prints JSON with control characters escaped, so that a terminal is safe; the meaning is unchanged. Prints
/// piece by piece, because a tokenizer has hundreds of thousands of values.
JsonWriter writer_to_output(int indent) {
    const auto print = [](std::string_view piece) {
        std::cout << printable(piece, {.max_characters = 0, .multiline = true});
    };
    return JsonWriter(print, indent);
}

void print_json(const JsonValue& value, int indent) {
    JsonWriter writer = writer_to_output(indent);
    writer.write(value);
    writer.finish();
    std::cout << '\n';
}

void print_json(const std::filesystem::path& file, const CheckpointInfo& info) {
    JsonWriter writer = writer_to_output(2);
    writer.begin_object();
    writer.write("bytes", info.file_bytes);
    writer.write("config", info.config);
    writer.write_name("data");
    write_checkpoint_data(writer, info.data, info.tokenizer);
    writer.write("file", printable(file.string(), {.max_characters = 0}));
    writer.write("meta", info.meta);
    writer.write("rng", info.rng);
    writer.write("step", info.step);
    writer.write_name("tensors");
    writer.begin_array();
    for (const TensorInfo& t : info.tensors)
        writer.write(JsonValue::object({{"name", t.name},
                                        {"dtype", name_of(t.dtype)},
                                        {"shape", std::vector<std::int64_t>(t.shape.begin(), t.shape.end())},
                                        {"crc32c", t.crc32c}}));
    writer.end();
    writer.end();
    writer.finish();
    std::cout << '\n';
}

struct Inspected {
    std::filesystem::path file;
    CheckpointInfo info;
};
/// Inspects a file, or the newest checkpoint in a directory, which a running process may replace by a newer
/// checkpoint.
Inspected inspect_file_or_run(const std::filesystem::path& path) {
    if (!std::filesystem::is_directory(path)) return {path, inspect_checkpoint(path)};
    constexpr int max_looks = 100;
    for (int look = 1;; ++look) {
        const std::filesystem::path file = newest_file(path);
        try {
            return {file, inspect_checkpoint(file)};
        } catch (const Error&) {
            if (exists(file) || look == max_looks) throw;
        }
    }
}

int inspect(const std::string& path, bool json) {
    const auto& [file, info] = inspect_file_or_run(path);
    if (json) {
        print_json(file, info);
        return 0;
    }
    std::cout << printable(file.string()) << ": sound, step " << info.step << ", " << info.file_bytes
              << " bytes";
    if (info.parts > 0) std::cout << " with " << info.parts << " parts";
    std::cout << '\n';
    for (const TensorInfo& t : info.tensors)
        std::cout << "  " << printable_name(t.name) << "  " << t.shape << ' ' << t.dtype << '\n';
    std::cout << "config ";
    print_json(info.config, /*indent=*/2);
    std::cout << "meta ";
    print_json(info.meta, /*indent=*/-1);
    return 0;
}

}  // namespace

void add_inspect(CommandLine& program) {
    struct Flags {
        std::string path;
        bool json = false;
    };
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command("inspect", "Verify a checkpoint and list its contents");
    command.add_positional("checkpoint", flags->path, "directory of a run, or checkpoint file");
    command.add_switch("--json", flags->json, "print one JSON object");
    command.set_action([flags] { return inspect(flags->path, flags->json); });
}

}  // namespace gradtile::cli
