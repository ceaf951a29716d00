// gradtile tokenize: encodes texts as a token file.
#include <iostream>

#include <gradtile/core/io/file_system.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/line_progress.h>
#include <gradtile/tools/command_line/setting_flags.h>
#include <gradtile/tools/command_line/text_file.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/tokenizer/tokenize_files.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>

namespace gradtile::cli {
namespace {

void print_written(const std::string& path, std::int64_t documents, std::int64_t tokens, TokenFormat format) {
    std::cout << printable(path) << ": " << grouped(tokens) << " tokens of " << grouped(documents)
              << (documents == 1 ? " document, " : " documents, ") << name_of(format) << '\n';
}

void check_outputs(const TokenizeOptions& options, const std::string& tokenizer) {
    std::vector<std::string> inputs = files_of(options.files);
    if (tokenizer != name_of(TokenizerKind::bytes))
        for (std::string& file : tokenizer_inputs(tokenizer)) inputs.push_back(std::move(file));
    check_not_an_input("--out", options.out, inputs);
    if (options.val_out.empty()) return;
    check_not_an_input("--val-out", options.val_out, inputs);
    check_usage(!is_same_file(options.out, options.val_out), "--val-out: '", options.val_out,
                "' is the file of --out; expected another file");
}

}  // namespace

void add_tokenize(CommandLine& program) {
    struct Flags {
        TokenizeOptions options;
        std::string tokenizer;
        std::int64_t threads = 0;
    };
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command("tokenize", "Encode documents as a token file to train on");
    TokenizeOptions& options = flags->options;
    command.add_positionals(
        "files", options.files,
        "files, folders or patterns: text (each file is one document), JSON Lines or Parquet, "
        "each also .gz or .zst; -: standard input");
    command.add_value(
        "--tokenizer", flags->tokenizer,
        "tokenizer.json, a model of SentencePiece, encoder.json with vocab.bpe, or a rank file of "
        "tiktoken; or bytes");
    command.add_value("--text-column", options.text_column, help_of_setting("text-column"));
    command.add_value("--chat-template", options.chat_template, help_of_setting("chat-template"));
    command.add_value("--format", options.style, "llm.c's shards, or nanoGPT's files without a header");
    command.add_value("--out", options.out, "token file to write (.bin)");
    command.add_value("--separator", options.separator,
                      "added token, <|endoftext|> for example: its text ends a document within a file, and "
                      "its id is written before each document; empty: none");
    command.add_value("--val-fraction", options.val_fraction,
                      "fraction of the documents, the last ones, that is written to --val-out; 0: none");
    command.add_value("--val-out", options.val_out, "token file for the documents of --val-fraction");
    command.add_value("--threads", flags->threads, "number of threads; 0: one per core");
    for (const char* flag : {"--tokenizer", "--out"}) command.require(flag);
    command.set_action([flags] {
        TokenizeOptions& chosen = flags->options;
        check_flag("--threads", flags->threads, threads_range);
        chosen.threads = static_cast<int>(flags->threads);
        check_outputs(chosen, flags->tokenizer);
        rethrow_as_usage_error([&] { validate(chosen); });
        LineProgress progress;
        chosen.on_progress = [&](std::int64_t bytes, std::int64_t of) { progress.show_bytes(bytes, of); };
        const TokenizeResult result = tokenize_files(flags->tokenizer == name_of(TokenizerKind::bytes)
                                                         ? Tokenizer::bytes()
                                                         : load_tokenizer(flags->tokenizer),
                                                     chosen);
        progress.end();
        print_written(chosen.out, result.documents, result.tokens, result.format);
        if (result.val_documents > 0)
            print_written(chosen.val_out, result.val_documents, result.val_tokens, result.format);
        return 0;
    });
}

}  // namespace gradtile::cli
