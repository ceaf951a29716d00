// gradtile sample: generates text with a trained model.
#include <iostream>

#include <gradtile/cli/commands.h>
#include <gradtile/cli/model_argument.h>
#include <gradtile/cli/standard_streams.h>
#include <gradtile/cli/usage_error.h>
#include <gradtile/train/sampler.h>

namespace gradtile::cli {
namespace {

struct Flags {
    ModelArgument model;
    SampleOptions options;
};

int sample_text(const Flags& flags) {
    const SampleOptions& o = flags.options;
    check_flag("--tokens", o.tokens, sample_limits::tokens);
    check_flag("--temperature", o.temperature, sample_limits::temperature);
    check_flag("--top-k", o.top_k, sample_limits::top_k);
    check_flag("--top-p", o.top_p, sample_limits::top_p);
    const auto model = flags.model.load();
    std::cout << text_for_output(sample(*model, o)) << '\n';
    return 0;
}

}  // namespace

void add_sample(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command("sample", "Generate text with a trained model");
    flags->model.add_to(command);
    SampleOptions& options = flags->options;
    command.add_value("--prompt", options.prompt, "text that the model continues");
    command.add_value("--tokens", options.tokens, "number of tokens to draw");
    command.add_value("--temperature", options.temperature,
                      "divisor of the logits; 0: always the most likely token");
    command.add_value("--top-k", options.top_k, "draw among the k most likely tokens; 0: all");
    command.add_value("--top-p", options.top_p, "draw among the most likely tokens with total probability p");
    command.add_value("--seed", options.seed, "seed of the random draws");
    command.set_action([flags] { return sample_text(*flags); });
}

}  // namespace gradtile::cli
