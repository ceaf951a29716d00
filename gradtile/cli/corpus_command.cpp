// gradtile corpus: stories to train on that need no download, and what their source itself would lose on
// them.
#include <cstdio>
#include <fstream>

#include <gradtile/cli/commands.h>
#include <gradtile/cli/flag_values.h>
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

void add_corpus(CLI::App& app, Action& chosen) {
    const auto flags = std::make_shared<Flags>();
    CLI::App* command = app.add_subcommand("corpus", "Write short stories from a grammar, to train on");
    add_value(*command, "--characters", flags->characters, "at least this many; stories are not cut");
    add_value(*command, "--seed", flags->seed, "another seed, other stories");
    add_value(*command, "--out", flags->out, "file to write");
    add_value(*command, "--score", flags->score,
              "file whose validation stories to measure: -ln p per character under the grammar");
    command->callback([flags, &chosen] { chosen = [flags] { return corpus(*flags); }; });
}

}  // namespace gradtile::cli
