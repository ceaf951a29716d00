// gradtile eval: measures the loss of a trained model over a whole file.
#include <cstdio>
#include <iostream>

#include <gradtile/cli/commands.h>
#include <gradtile/cli/model_argument.h>
#include <gradtile/cli/usage_error.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/message.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/evaluate.h>
#include <gradtile/train/formats/safetensors.h>

namespace gradtile::cli {
namespace {

struct Flags {
    ModelArgument model;
    std::string data, logits;
    TokenType token_type = TokenType::automatic;
    std::int64_t batch = 12;
    bool json = false;
};

/// Writes the tokens of the first window and the logits after each of them.
void write_logits(const std::string& path, const LanguageModel& model, const TokenSequence& tokens) {
    const std::int64_t length = std::min(tokens.size(), model.transformer.config.context);
    std::vector<std::int32_t> window(static_cast<std::size_t>(length));
    tokens.read(0, window);
    const Context host(Device::cpu(), 1);
    const std::vector<double> logits = to_host(
        model.ctx, model.transformer.logits_of_all(model.ctx, from_host(model.ctx, window, {1, length})));
    write_safetensors(
        path,
        {{"tokens", from_host(host, window, {length})},
         {"logits", from_host(host, logits, {length, model.transformer.config.vocabulary}, DType::f32)}});
}

int eval(const Flags& flags) {
    check_flag("--batch", flags.batch, {1, setting_limits::max_sequences});
    const auto model = flags.model.load();
    check_usage(activations_are_countable(model->transformer.config, flags.batch), "--batch: ", flags.batch,
                " windows of ", model->transformer.config.context, " tokens are too many at once");
    const LoadedTokens data =
        load_tokens(flags.data, model->tokenizer,
                    {.vocabulary = model->transformer.config.vocabulary,
                     .token_type = flags.token_type,
                     .special_tokens = model->packing ? SpecialTokens::recognised : SpecialTokens::as_text,
                     .chat_template = model->chat_template});
    if (!flags.logits.empty()) write_logits(flags.logits, *model, data.tokens);
    const Evaluation result =
        evaluate(*model, data.tokens,
                 {.batch = flags.batch, .ignore_token = model->ignore_token, .packing = model->packing});
    if (flags.json) {
        JsonValue line = JsonValue::object(
            {{"loss", result.loss}, {"perplexity", result.perplexity}, {"targets", result.targets}});
        if (result.bits_per_character) line.set("bits_per_character", *result.bits_per_character);
        if (result.bits_per_byte) line.set("bits_per_byte", *result.bits_per_byte);
        std::cout << line.dump() << '\n';
        return 0;
    }
    std::cout << printable(concat(flags.data, ": ", data.description)) << '\n' << std::flush;
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
    Command command = program.add_command("eval", "Measure the loss of a trained model on a file");
    flags->model.add_to(command);
    command.add_value("--data", flags->data, "text file, or token file (.bin)");
    command.require("--data");
    command.add_value("--token-type", flags->token_type,
                      "integer type of a token file without a header; auto: uint16");
    command.add_value("--batch", flags->batch, "windows evaluated at once");
    command.add_value(
        "--logits", flags->logits,
        "safetensors file to write: the first window's tokens [T] and logits [T,V]; empty: none");
    command.add_switch("--json", flags->json, "print one JSON object");
    command.set_action([flags] { return eval(*flags); });
}

}  // namespace gradtile::cli
