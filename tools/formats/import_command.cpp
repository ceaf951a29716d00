// gradtile import: makes a run from other projects' weights.
#include <iostream>

#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/message.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/formats/imported_run.h>

namespace gradtile::cli {
namespace {

int import(const std::string& path, const std::string& out, const ImportOptions& options) {
    const ImportedModel model = import_model(path, options);
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
        ImportOptions options;
    };
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command("import", "Make a run from weights of other projects");
    command.add_positional("weights", flags->path,
                           "folder of Hugging Face transformers (GPT-2, Llama), one of its .safetensors "
                           "files, or a model of llm.c (.bin)");
    command.add_value("--out", flags->out, "directory of the new run");
    command.require("--out");
    command.add_value(
        "--tokenizer", flags->options.tokenizer,
        "file of the tokenizer, or none; empty: tokenizer.json or vocab.json beside the weights");
    command.add_switch(
        "--allow-unknown", flags->options.allow_unknown,
        "ignore members of config.json and other files that have no known meaning, and list them");
    command.set_action([flags] {
        check_usage(!flags->out.empty(), "--out '': expected a directory for the run's files");
        return import(flags->path, flags->out, flags->options);
    });
}

}  // namespace gradtile::cli
