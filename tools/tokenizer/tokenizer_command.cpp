// gradtile tokenizer: trains tokenizers.
#include <iostream>
#include <utility>

#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/line_progress.h>
#include <gradtile/tools/command_line/setting_flags.h>
#include <gradtile/tools/command_line/text_file.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/tokenizer/byte_pair_trainer.h>
#include <gradtile/tools/tokenizer/tokenize_files.h>
#include <gradtile/train/data/documents.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>

namespace gradtile::cli {
namespace {

struct Flags {
    BytePairTrainerOptions options{.vocabulary = 32768};
    std::vector<std::string> data;
    std::string text_column, out;
    std::int64_t threads = 0;
};

int train_tokenizer(Flags& flags) {
    check_flag("--threads", flags.threads, threads_range);
    check_not_an_input("--out", flags.out, files_of(flags.data));
    flags.options.threads = static_cast<int>(flags.threads);
    std::erase(flags.options.special_tokens, "");
    LineProgress progress;
    flags.options.on_progress = [&](std::int64_t merges, std::int64_t of) {
        progress.show(concat(grouped(merges), " of ", grouped(of), " merges"));
    };
    BytePairTrainer trainer = rethrow_as_usage_error([&] { return BytePairTrainer(flags.options); });
    const std::vector<std::string> files = files_of(flags.data);
    const std::int64_t all_bytes = bytes_of_files(files);
    DocumentReader reader(files, flags.text_column);
    for (Document document; reader.next(document);) {
        for (const std::string& text : texts_of(document)) trainer.add(text);
        progress.show_bytes(std::min(reader.bytes_done(), all_bytes), all_bytes);
    }
    check(trainer.distinct_pieces() > 0, flags.data.front(), ": is empty; expected text");
    TrainedBytePairs trained = trainer.train();
    const Tokenizer tokenizer = Tokenizer::byte_pairs(std::move(trained.vocabulary), flags.out);
    progress.end();
    save_tokenizer(flags.out, tokenizer);
    std::cout << printable(flags.out) << ": " << grouped(tokenizer.vocab_size()) << " tokens, from "
              << grouped(trainer.distinct_pieces()) << " different pieces of text\n";
    if (!trained.shortage.empty())
        print_message(
            concat(trained.shortage, ": the vocabulary is smaller than ", flags.options.vocabulary));
    return 0;
}

}  // namespace

void add_tokenizer(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command("tokenizer", "Make a tokenizer for text of your own")
                          .add_command("train", "Train a byte-level BPE tokenizer with GPT-2's split");
    command.add_list("--data", flags->data, "files, folders or patterns to train on, as tokenize reads them");
    command.add_value("--text-column", flags->text_column, help_of_setting("text-column"));
    command.add_value("--vocabulary", flags->options.vocabulary, "number of tokens");
    command.add_value("--out", flags->out, "tokenizer.json to write");
    command.add_list("--special-tokens", flags->options.special_tokens,
                     "tokens that control a model, with the first ids (default: <|endoftext|>)");
    command.add_value("--min-frequency", flags->options.min_frequency,
                      "pairs that occur less often are not merged");
    command.add_value("--threads", flags->threads, "number of threads; 0: one per core");
    for (const char* flag : {"--data", "--out"}) command.require(flag);
    command.set_action([flags] { return train_tokenizer(*flags); });
}

}  // namespace gradtile::cli
