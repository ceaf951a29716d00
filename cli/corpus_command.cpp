// gradtile corpus: generates stories for training without a download, and measures the loss of the grammar
// itself on them.
#include <cstdio>
#include <fstream>

#include <gradtile/cli/commands.h>
#include <gradtile/cli/usage_error.h>
#include <gradtile/core/text/message.h>
#include <gradtile/train/corpus/corpus.h>
#include <gradtile/train/data/dataset.h>

namespace gradtile::cli {
namespace {

struct Flags {
    std::int64_t characters = 1'000'000;
    std::uint64_t seed = 1;
    std::string out, score;
};

void write_corpus(const Flags& flags) {
    check_flag("--characters", flags.characters, {1, 1e9});
    const Corpus corpus = generate_corpus(flags.characters, Seed{flags.seed});
    std::ofstream file(flags.out, std::ios::binary);
    file << corpus.text;
    file.close();
    check(file.good(), flags.out, ": cannot write the corpus");
    std::printf("%s: %zu stories, %zu characters\n", printable(flags.out).c_str(), corpus.stories.size(),
                corpus.text.size());
}

void print_score(const std::string& path) {
    // The byte tokenizer reads any file. Files that are not stories have no source_nll.
    const Dataset dataset = load_dataset({.data = path, .tokenizer = TokenizerKind::bytes});
    check(dataset.source_nll.has_value(), path, ": expected a text that `gradtile corpus` wrote");
    std::printf(
        "loss of the grammar itself: %.4f nats per character on the validation stories\n"
        "(the grammar knows a story from its first word; a model knows its context only)\n",
        *dataset.source_nll);
}

int corpus(const Flags& flags) {
    check_usage(flags.out.empty() != flags.score.empty(),
                "corpus: give either --out FILE (write) or --score FILE (measure)");
    if (!flags.out.empty()) write_corpus(flags);
    if (!flags.score.empty()) print_score(flags.score);
    return 0;
}

}  // namespace

void add_corpus(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command("corpus", "Generate short stories from a grammar, for training");
    command.add_value("--characters", flags->characters,
                      "minimum number of characters; the last story is not cut");
    command.add_value("--seed", flags->seed, "seed of the stories");
    command.add_value("--out", flags->out, "file to write");
    command.add_value(
        "--score", flags->score,
        "file to measure: prints -ln p per character of its validation stories under the grammar");
    command.set_action([flags] { return corpus(*flags); });
}

}  // namespace gradtile::cli
