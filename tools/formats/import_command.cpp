// gradtile import: makes a run from other projects' weights.
#include <iomanip>
#include <iostream>

#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/message.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/line_progress.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/formats/families/model_family.h>
#include <gradtile/tools/formats/imported_run.h>
#include <gradtile/tools/formats/internal/formats.h>
#include <gradtile/tools/formats/transformers_members.h>

namespace gradtile::cli {
namespace {

/// Prints the families, and for each the members of config.json whose other values it refuses.
int list_families() {
    const auto row = [](std::string_view type, std::string_view gguf, std::string_view models) {
        std::cout << std::left << std::setw(13) << type << std::setw(10) << gguf << models << '\n';
    };
    row("model_type", "GGUF", "models");
    for (const ModelFamily& family : model_families()) {
        row(family.type, family.gguf.architecture, family.models);
        for (const KnownMember& member : family.other_members) {
            if (member.meaning != MemberMeaning::refused) continue;
            const std::string_view neutral = member.neutral.substr(1, member.neutral.size() - 2);
            std::cout << "  refused: " << member.name << (neutral.empty() ? "" : ", unless it is ") << neutral
                      << '\n';
        }
    }
    std::cout << "\nRefused in every family, by their names in config.json:\n ";
    for (const KnownMember& member : foreign_members()) std::cout << ' ' << member.name;
    std::cout << "\n\nWhat is read: " << import_file_kinds() << '\n';
    return 0;
}

int import(const std::string& path, const std::string& out, ImportOptions options) {
    LineProgress progress;
    options.on_progress = [&](std::int64_t bytes, std::int64_t of) { progress.show_bytes(bytes, of); };
    const ImportedModel model = import_model(path, options);
    progress.end();
    for (const std::string& line : model.notes) print_message(line);
    const std::filesystem::path file = write_imported_run(model, out);
    std::cout << printable(path) << ": " << model.description << ", "
              << grouped(parameter_count(model.config)) << " parameters, vocabulary "
              << grouped(model.config.vocabulary) << ", context " << grouped(model.config.context)
              << "\ntokenizer:  " << (model.tokenizer ? model.tokenizer->name() : "none")
              << "\ncheckpoint: " << printable(file.string()) << '\n';
    return 0;
}

}  // namespace

void add_import(CommandLine& program) {
    struct Flags {
        std::string path, out;
        bool list = false;
        ImportOptions options;
    };
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command("import", "Make a run from weights of other projects");
    command.add_optional_positional("weights", flags->path, import_file_kinds());
    command.add_value("--out", flags->out, "directory of the new run");
    command.add_switch("--list", flags->list, "print the families of models that can be imported");
    command.add_value("--dtype", flags->options.dtype,
                      "type of the run's weights; stored: bf16 if the files hold bfloat16, else f32");
    command.add_value("--context", flags->options.context,
                      "largest number of tokens, at most the model's; 0: the model's");
    command.add_value("--tokenizer", flags->options.tokenizer,
                      "file of the tokenizer, or none; empty: tokenizer.json, vocab.json or tokenizer.model "
                      "beside the weights");
    command.add_switch(
        "--allow-unknown", flags->options.allow_unknown,
        "ignore members of config.json and other files that have no known meaning, and list them");
    command.set_action([flags] {
        if (flags->list) return list_families();
        check_usage(!flags->path.empty(), "weights: expected a folder or a file; --list prints the families");
        check_usage(!flags->out.empty(), "--out '': expected a directory for the run's files");
        return import(flags->path, flags->out, flags->options);
    });
}

}  // namespace gradtile::cli
