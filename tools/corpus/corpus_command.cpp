// gradtile corpus: generates stories or conversations for training without a download, and measures the
// grammar's own loss on stories.
#include <cstdio>
#include <optional>
#include <span>

#include <gradtile/core/io/durable_file.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/corpus/corpus.h>
#include <gradtile/tools/corpus/dialogues.h>
#include <gradtile/train/data/dataset.h>

namespace gradtile::cli {
namespace {

constexpr std::int64_t default_characters = 1'000'000;

struct Flags {
    std::optional<std::int64_t> characters, dialogues;
    std::uint64_t seed = 1;
    std::string out, score;
};

void write_file(const std::string& path, const std::string& text) {
    WholeFile(path, {std::as_bytes(std::span(text))}).commit();
}

void write_dialogues(const Flags& flags) {
    check_flag("--dialogues", *flags.dialogues, {1, 1e7});
    const std::string text = conversations_text(generate_dialogues(*flags.dialogues, Seed{flags.seed}));
    write_file(flags.out, text);
    std::printf("%s: %lld conversations, %zu bytes\n", printable(flags.out).c_str(),
                static_cast<long long>(*flags.dialogues), text.size());
}

void write_stories(const Flags& flags) {
    const std::int64_t characters = flags.characters.value_or(default_characters);
    check_flag("--characters", characters, {1, 1e9});
    const Corpus corpus = generate_corpus(characters, Seed{flags.seed});
    write_file(flags.out, corpus.text);
    std::printf("%s: %zu stories, %zu characters\n", printable(flags.out).c_str(), corpus.stories.size(),
                corpus.text.size());
}

void print_score(const std::string& path) {
    // The byte tokenizer reads any file. Files that are not stories have no source loss.
    const Dataset dataset =
        load_dataset({.data = path, .tokenizer = TokenizerKind::bytes, .stories = parse_corpus});
    check(dataset.source_loss.has_value(), path, ": expected a text that `gradtile corpus` wrote");
    std::printf(
        "loss of the grammar itself: %.4f nats per character on the validation stories\n"
        "(the grammar knows a story from its first word; a model knows its context only)\n",
        dataset.source_loss->nats_per_character);
}

int corpus(const Flags& flags) {
    check_usage(flags.out.empty() != flags.score.empty(),
                "corpus: give either --out FILE (write) or --score FILE (measure)");
    check_usage(!flags.characters || !flags.dialogues,
                "--characters and --dialogues: expected only one of them");
    if (!flags.score.empty()) {
        check_usage(!flags.characters && !flags.dialogues,
                    "--score: expected neither --characters nor --dialogues");
        print_score(flags.score);
    } else if (flags.dialogues) {
        write_dialogues(flags);
    } else {
        write_stories(flags);
    }
    return 0;
}

}  // namespace

void add_corpus(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command =
        program.add_command("corpus", "Generate short stories or conversations from a grammar, for training");
    command.add_value<std::int64_t>("--characters", "minimum number of characters; the last story is not cut",
                                    default_characters,
                                    [flags](const std::int64_t& n) { flags->characters = n; });
    command.add_value("--dialogues", flags->dialogues,
                      "number of conversations (JSON Lines) to write instead of stories");
    command.add_value("--seed", flags->seed, "seed of the texts");
    command.add_value("--out", flags->out, "file to write");
    command.add_value(
        "--score", flags->score,
        "file to measure: prints -ln p per character of its validation stories under the grammar");
    command.set_action([flags] { return corpus(*flags); });
}

}  // namespace gradtile::cli
