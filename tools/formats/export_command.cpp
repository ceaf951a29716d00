// gradtile export: writes a trained model for other projects.
#include <iostream>

#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/formats/export.h>
#include <gradtile/tools/formats/internal/formats.h>
#include <gradtile/train/model/language_model.h>

namespace gradtile::cli {

void add_export(CommandLine& program) {
    struct Flags {
        std::string model;
        ExportOptions options;
    };
    const auto flags = std::make_shared<Flags>();
    std::string formats;
    for (const ExportFormatRow& row : export_formats)
        formats += concat(formats.empty() ? "" : "; ", name_of(row.format), ": ", row.files);
    Command command = program.add_command("export", "Write a trained model for other programs");
    command.add_positional("model", flags->model, "directory of a run, or checkpoint file");
    command.add_value("--format", flags->options.format, formats);
    command.add_value("--out", flags->options.out, "folder or file to write; no file is replaced");
    command.require("--out");
    command.add_value("--dtype", flags->options.dtype, "type of the weights; run: that of the run");
    command.set_action([flags] {
        check_usage(!flags->options.out.empty(), "--out '': expected a folder or a file");
        const Checkpoint checkpoint = load_checkpoint(flags->model, {}, print_message);
        const ExportResult result = export_model(checkpoint, flags->model, flags->options);
        for (const std::string& line : result.notes) print_message(line);
        for (const std::string& file : result.files) std::cout << printable(file) << '\n';
        return 0;
    });
}

}  // namespace gradtile::cli
