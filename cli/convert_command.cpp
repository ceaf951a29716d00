// gradtile convert: converts a checkpoint or a run's directory from an earlier format to the current one.
#include <iostream>

#include <gradtile/cli/commands.h>
#include <gradtile/train/run/checkpoint_conversion.h>
#include <gradtile/train/trainer.h>

namespace gradtile::cli {
namespace {

int convert(const std::filesystem::path& old_path, const std::filesystem::path& new_path) {
    if (!is_directory(old_path)) {
        convert_checkpoint(old_path, new_path);
        std::cout << printable(new_path.string()) << '\n';
        return 0;
    }
    const ConvertedRun run = convert_run(old_path, new_path);
    for (const std::string& line : run.damaged) print_message(line);
    for (const std::filesystem::path& file : run.files) std::cout << printable(file.string()) << '\n';
    return 0;
}

}  // namespace

void add_convert(CommandLine& program) {
    struct Flags {
        std::string old_path, new_path;
    };
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command(
        "convert", "Convert a checkpoint or a run of format version 1 to the current format");
    command.add_positional("old", flags->old_path, "checkpoint file or directory of a run; not changed");
    command.add_positional("new", flags->new_path, "path of the result; must not exist");
    command.set_action([flags] { return convert(flags->old_path, flags->new_path); });
}

}  // namespace gradtile::cli
