// gradtile corpus: stories to train on that need no download, and what their source itself would lose on
// them.
#include <cstdio>
#include <fstream>

#include <gradtile/cli/commands.h>
#include <gradtile/train/corpus.h>
#include <gradtile/train/dataset.h>

namespace gradtile::cli {
namespace {

struct Flags {
    std::int64_t characters = 1'000'000;
    std::uint64_t seed = 1;
    std::string out, score;
};

void write_corpus(const Flags& flags) {
    check(flags.characters >= 1, "--characters: ", flags.characters, "; expected at least 1");
    const Corpus corpus = generate_corpus(flags.characters, Seed{flags.seed});
    std::ofstream file(flags.out, std::ios::binary);
    file << corpus.text;
    file.close();
    check(file.good(), flags.out, ": the corpus cannot be written");
    std::printf("%s: %zu stories, %zu characters\n", flags.out.c_str(), corpus.stories.size(),
                corpus.text.size());
}

void print_score(const std::string& path) {
    const Dataset dataset = load_dataset({.data = path});
    check(dataset.source_nll.has_value(), path, ": not a text that `gradtile corpus` wrote");
    std::printf(
        "the source of the stories itself: %.4f nats per character on the validation stories\n"
        "(it remembers a story from its first word; a model sees no further back than its context)\n",
        *dataset.source_nll);
}

int corpus(const Flags& flags) {
    check(flags.out.empty() != flags.score.empty(),
          "corpus: give either --out FILE (write) or --score FILE (measure)");
    if (!flags.out.empty()) write_corpus(flags);
    if (!flags.score.empty()) print_score(flags.score);
    return 0;
}

}  // namespace

void add_corpus(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command("corpus", "Write short stories from a grammar, to train on");
    command.add_value("--characters", flags->characters, "at least this many; stories are not cut");
    command.add_value("--seed", flags->seed, "another seed, other stories");
    command.add_value("--out", flags->out, "file to write");
    command.add_value("--score", flags->score,
                      "file whose validation stories to measure: -ln p per character under the grammar");
    command.on_chosen([flags] { return corpus(*flags); });
}

}  // namespace gradtile::cli
