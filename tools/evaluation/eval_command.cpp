// gradtile eval: measures a trained model's loss over a whole file, or its accuracy on multiple-choice
// questions.
#include <cstdio>
#include <iostream>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/line_progress.h>
#include <gradtile/tools/command_line/model_argument.h>
#include <gradtile/tools/command_line/setting_flags.h>
#include <gradtile/tools/command_line/text_file.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/evaluation/evaluate.h>
#include <gradtile/tools/evaluation/multiple_choice.h>
#include <gradtile/tools/formats/safetensors.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/data/examples.h>
#include <gradtile/train/data/readers/byte_source.h>

namespace gradtile::cli {
namespace {

struct Flags {
    ModelArgument model;
    std::string data, text_column, task, logits;
    TokenType token_type = TokenType::automatic;
    std::int64_t batch = 12, stride = 0;
    bool json = false;
};

/// Writes the tokens in the first window and the logits after each token.
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

/// "1,200 of 10,042 windows, 31.4 windows/s"
void show_progress(LineProgress& progress, std::int64_t done, std::int64_t all, const char* unit) {
    progress.show(concat(grouped(done), " of ", grouped(all), ' ', unit, ", ",
                         formatted("%.1f", static_cast<double>(done) / std::max(progress.seconds(), 1e-9)),
                         ' ', unit, "/s"));
}

void print_json(const Evaluation& result) {
    JsonValue line = JsonValue::object(
        {{"loss", result.loss}, {"perplexity", result.perplexity}, {"targets", result.targets}});
    if (result.bits_per_character) line.set("bits_per_character", *result.bits_per_character);
    if (result.bits_per_byte) line.set("bits_per_byte", *result.bits_per_byte);
    std::cout << line.dump() << '\n';
}

void eval_text(const Flags& flags, const LanguageModel& model) {
    const LoadedTokens data =
        load_tokens({.data = flags.data,
                     .token_type = flags.token_type,
                     .vocabulary = model.transformer.config.vocabulary,
                     .special_tokens = model.packing ? SpecialTokens::recognised : SpecialTokens::as_text,
                     .chat_template = model.chat_template,
                     .train_on = model.train_on,
                     .text_column = flags.text_column},
                    model.tokenizer);
    check(flags.logits.empty() || !model.transformer.config.prefix, "logits: ", flags.logits,
          " with a model with prefix; expected none, because a window does not say where its prompt ends");
    if (!flags.logits.empty()) write_logits(flags.logits, model, data.tokens);
    LineProgress progress;
    const Evaluation result = evaluate(model, data.tokens,
                                       {.batch = flags.batch,
                                        .ignore_token = model.ignore_token,
                                        .packing = model.packing,
                                        .stride = flags.stride,
                                        .on_progress = [&](std::int64_t done, std::int64_t windows) {
                                            show_progress(progress, done, windows, "windows");
                                        }});
    progress.end();
    if (flags.json) return print_json(result);
    std::cout << printable(concat(flags.data, ": ", data.description)) << '\n' << std::flush;
    const Packing packing = packing_for(model.packing, document_kind_of(data.tokens), flags.data);
    if (const std::string note =
            note_on_long_examples(data.tokens, model.transformer.config.context, packing);
        !note.empty())
        std::cout << printable(note) << '\n' << std::flush;
    std::printf("loss %.4f nats per token over %lld tokens, perplexity %.3f\n", result.loss,
                static_cast<long long>(result.targets), result.perplexity);
    if (result.bits_per_byte) {
        std::printf("%.4f bits per character, %.4f bits per byte\n", result.bits_per_character.value_or(0.0),
                    *result.bits_per_byte);
    } else {
        std::printf("bits per byte are not known: the model has no tokenizer\n");
    }
}

JsonValue json_of_answer(const ChoiceAnswer& answer, const ChoiceQuestion& question) {
    std::vector<JsonValue> sums, tokens;
    for (const ChoiceLoss& loss : answer.losses) {
        sums.emplace_back(loss.sum);
        tokens.emplace_back(loss.tokens);
    }
    return JsonValue::object({{"label", question.label},
                              {"by_mean", answer.by_mean},
                              {"by_sum", answer.by_sum},
                              {"sums", sums},
                              {"tokens", tokens}});
}

void eval_task(const Flags& flags, const LanguageModel& model) {
    const std::vector<ChoiceQuestion> questions = read_choice_questions(open_text(flags.task));
    LineProgress progress;
    const ChoiceEvaluation result = evaluate_choices(
        model, questions, {.batch = flags.batch, .on_progress = [&](std::int64_t done, std::int64_t choices) {
                               show_progress(progress, done, choices, "choices");
                           }});
    progress.end();
    if (flags.json) {
        std::vector<JsonValue> answers;
        for (std::size_t i = 0; i < questions.size(); ++i)
            answers.push_back(json_of_answer(result.answers[i], questions[i]));
        std::cout << JsonValue::object({{"questions", questions.size()},
                                        {"accuracy", result.accuracy},
                                        {"accuracy_by_sum", result.accuracy_by_sum},
                                        {"chance", result.chance},
                                        {"centred", result.centred()},
                                        {"answers", answers}})
                         .dump()
                  << '\n';
        return;
    }
    std::printf("%s: %s question%s\n", printable(flags.task).c_str(), grouped(std::ssize(questions)).c_str(),
                questions.size() == 1 ? "" : "s");
    std::printf("accuracy %.4f by mean loss, %.4f by sum; chance %.4f, centred %.4f\n", result.accuracy,
                result.accuracy_by_sum, result.chance, result.centred());
}

/// Returns whether write_logits() wrote the file. Other safetensors files hold models.
bool holds_logits(const std::string& path) {
    try {
        const SafetensorsFile file(path);
        return file.header().entries.size() == 2 && file.find("tokens") && file.find("logits");
    } catch (const Error&) {
        return false;
    }
}

void check_logits_file(const Flags& flags) {
    const std::string& path = flags.logits;
    check_not_an_input("--logits", path, {flags.data, flags.model.path});
    if (!std::filesystem::is_regular_file(path)) return;
    check(std::filesystem::file_size(path) == 0 || holds_logits(path), "logits ", path,
          ": holds something else, which would be lost; expected a new file or a file of logits");
}

int eval(const Flags& flags) {
    check_flag("--batch", flags.batch, {1, setting_limits::max_sequences});
    check_flag("--stride", flags.stride, {0, 1e9});
    check_usage(flags.data.empty() != flags.task.empty(), "eval: give either --data FILE or --task FILE");
    check_usage(flags.task.empty() || (flags.logits.empty() && flags.stride == 0 &&
                                       flags.text_column.empty() && flags.token_type == TokenType::automatic),
                "--task: expected none of --logits, --stride, --text-column and --token-type");
    if (!flags.logits.empty()) check_logits_file(flags);
    const auto model = flags.model.load();
    const ModelConfig& config = model->transformer.config;
    check_usage(activations_are_countable(config, flags.batch), "--batch: ", flags.batch, " windows of ",
                config.context, " tokens are too many at once");
    check_usage(flags.stride <= config.context, "--stride: ", flags.stride,
                "; expected at most the context of the model, ", config.context);
    if (flags.task.empty()) {
        eval_text(flags, *model);
    } else {
        eval_task(flags, *model);
    }
    return 0;
}

}  // namespace

void add_eval(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command(
        "eval", "Measure the loss of a trained model on a file, or its answers to questions");
    flags->model.add_to(command);
    command.add_value(
        "--data", flags->data,
        "file, folder or pattern: text, JSON Lines or Parquet, each also .gz or .zst, or tokens (.bin)");
    command.add_value("--text-column", flags->text_column, help_of_setting("text-column"));
    command.add_value(
        "--task", flags->task,
        "multiple-choice questions instead: JSON Lines with ctx, endings and label, as HellaSwag "
        "has them");
    command.add_value("--token-type", flags->token_type,
                      "integer type of a token file without a header; auto: uint16");
    command.add_value(
        "--stride", flags->stride,
        "tokens between the beginnings of windows; a token counts once, with at least context - "
        "stride tokens before it; 0: the context");
    command.add_value("--batch", flags->batch, "windows or choices evaluated at once");
    command.add_value(
        "--logits", flags->logits,
        "safetensors file to write: the first window's tokens [T] and logits [T,V]; empty: none");
    command.add_switch("--json", flags->json, "print one JSON object");
    command.set_action([flags] { return eval(*flags); });
}

}  // namespace gradtile::cli
