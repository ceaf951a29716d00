// gradtile sample: text from a trained model.
#include <cmath>
#include <iostream>

#include <gradtile/cli/commands.h>
#include <gradtile/cli/model_argument.h>
#include <gradtile/train/sampler.h>

namespace gradtile::cli {
namespace {

struct Flags {
    ModelArgument model;
    SampleOptions options;
};

int sample_text(const Flags& flags) {
    const SampleOptions& o = flags.options;
    check(o.tokens >= 0, "--tokens: ", o.tokens, "; expected 0 or more");
    check(o.temperature >= 0.0 && std::isfinite(o.temperature), "--temperature: ", o.temperature,
          "; expected 0 or more");
    check(o.top_k >= 0, "--top-k: ", o.top_k, "; expected 0 (all) or more");
    check(o.top_p > 0.0 && o.top_p <= 1.0, "--top-p: ", o.top_p, "; expected 0 < p <= 1");
    const auto model = flags.model.load();
    std::cout << sample(*model, o) << '\n';
    return 0;
}

}  // namespace

void add_sample(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command("sample", "Write text with a trained model");
    flags->model.add_to(command);
    SampleOptions& options = flags->options;
    command.add_value("--prompt", options.prompt, "text to go on from");
    command.add_value("--tokens", options.tokens, "tokens to draw");
    command.add_value("--temperature", options.temperature, "0: always the likeliest token");
    command.add_value("--top-k", options.top_k, "draw among the k likeliest; 0: all");
    command.add_value("--top-p", options.top_p, "draw among the likeliest that together have probability p");
    command.add_value("--seed", options.seed, "of the draws");
    command.on_chosen([flags] { return sample_text(*flags); });
}

}  // namespace gradtile::cli
