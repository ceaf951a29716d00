// gradtile eval: the loss of a trained model over a whole file.
#include <cstdio>
#include <iostream>

#include <gradtile/cli/commands.h>
#include <gradtile/cli/model_argument.h>
#include <gradtile/core/json_value.h>
#include <gradtile/train/dataset.h>
#include <gradtile/train/evaluate.h>

namespace gradtile::cli {
namespace {

struct Flags {
    ModelArgument model;
    std::string data;
    std::int64_t batch = 12;
    bool json = false;
};

int eval(const Flags& flags) {
    check(flags.batch >= 1, "--batch: ", flags.batch, "; expected at least 1");
    const auto model = flags.model.load();
    const TokenSequence tokens =
        load_tokens(flags.data, model->tokenizer, model->transformer.config.vocabulary);
    const Evaluation result =
        evaluate(*model, tokens, {.batch = flags.batch, .ignore_token = model->ignore_token});
    if (flags.json) {
        JsonValue line = JsonValue::object(
            {{"loss", result.loss}, {"perplexity", result.perplexity}, {"targets", result.targets}});
        if (result.bits_per_character) line.set("bits_per_character", *result.bits_per_character);
        if (result.bits_per_byte) line.set("bits_per_byte", *result.bits_per_byte);
        std::cout << line.dump() << '\n';
        return 0;
    }
    std::printf("loss %.4f nats per token over %lld tokens, perplexity %.3f\n", result.loss,
                static_cast<long long>(result.targets), result.perplexity);
    if (result.bits_per_character)
        std::printf("%.4f bits per character, %.4f bits per byte\n", *result.bits_per_character,
                    result.bits_per_byte.value_or(0.0));
    return 0;
}

}  // namespace

void add_eval(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command(
        "eval", "Loss of a trained model over a whole file, without the targets that training ignored");
    flags->model.add_to(command);
    command.add_value("--data", flags->data, "text, or token file (.bin)");
    command.require("--data");
    command.add_value("--batch", flags->batch, "windows at once");
    command.add_switch("--json", flags->json, "as one JSON object");
    command.on_chosen([flags] { return eval(*flags); });
}

}  // namespace gradtile::cli
