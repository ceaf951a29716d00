#include <gradtile/tools/generation/sampling_flags.h>

#include <algorithm>

#include <gradtile/tools/command_line/usage_error.h>

namespace gradtile::cli {

void add_sampling_flags(Command& command, SampleOptions& options) {
    command.add_value("--tokens", options.tokens, "largest number of tokens to draw");
    command.add_list("--stop", options.stop,
                     "the generated text ends before the first occurrence of one of these texts");
    command.add_value("--temperature", options.temperature,
                      "divisor of the logits; 0: always the most likely token");
    command.add_value("--top-k", options.top_k, "draw among the k most likely tokens; 0: all");
    command.add_value("--top-p", options.top_p, "draw among the most likely tokens with total probability p");
    command.add_value("--min-p", options.min_p,
                      "draw among tokens at least this many times as likely as the most likely one");
    command.add_value("--repetition-penalty", options.repetition_penalty,
                      "more than 1: tokens of the text so far become less likely");
    command.add_value("--seed", options.seed, "seed of the random draws");
}

void check_sampling_flags(const SampleOptions& options) {
    check_flag("--tokens", options.tokens, sample_limits::tokens);
    check_usage(std::ranges::find(options.stop, "") == options.stop.end(), "--stop '': expected a text");
    check_flag("--temperature", options.temperature, sample_limits::temperature);
    check_flag("--top-k", options.top_k, sample_limits::top_k);
    check_flag("--top-p", options.top_p, sample_limits::top_p);
    check_flag("--min-p", options.min_p, sample_limits::min_p);
    check_flag("--repetition-penalty", options.repetition_penalty, sample_limits::repetition_penalty);
}

}  // namespace gradtile::cli
