#include <gradtile/tools/evaluation/multiple_choice.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/layers/vocabulary.h>
#include <gradtile/train/data/readers/json_lines.h>

namespace gradtile {
namespace {

/// Returns the member that has either name.
const JsonValue& member_of(const JsonValue& line, const char* name, const char* other,
                           const std::string& where) {
    const bool has = line.contains(name), has_other = line.contains(other);
    check(has != has_other, where, ": expected a member ", name, " or ", other);
    return line[has ? name : other];
}

std::size_t label_of(const JsonValue& line, std::size_t choices, const std::string& where) {
    std::int64_t label = -1;
    const JsonValue* const found = line.find("label");
    const JsonValue value = found ? *found : JsonValue();
    if (value.fits<std::int64_t>()) label = value.get<std::int64_t>();
    if (value.is_string()) {
        const auto& text = value.text();
        const auto parsed = std::from_chars(text.data(), text.data() + text.size(), label);
        if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) label = -1;
    }
    check(label >= 0 && label < static_cast<std::int64_t>(choices), where, ": label ", json_excerpt(value),
          "; expected the index of a choice, 0 to ", choices - 1);
    return static_cast<std::size_t>(label);
}

ChoiceQuestion question_of(const JsonValue& line, const std::string& where) {
    check(line.is_object(), where, ": expected an object with context, choices and label");
    const JsonValue& context = member_of(line, "ctx", "context", where);
    const JsonValue& choices = member_of(line, "endings", "choices", where);
    check(context.is_string() && !context.text().empty(), where, ": expected a text as the context");
    check(choices.is_array() && choices.size() >= 2, where, ": expected an array of at least two choices");
    ChoiceQuestion question{.context = context.get<std::string>(), .choices = {}};
    for (const JsonValue& choice : choices.elements()) {
        check(choice.is_string() && !choice.text().empty(), where, ": expected texts as choices");
        question.choices.push_back(choice.get<std::string>());
    }
    question.label = label_of(line, question.choices.size(), where);
    return question;
}

/// Returns whether Python's str.isspace() holds for a character: lm-evaluation-harness is written in Python.
bool is_white(char32_t c) {
    return (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= ' ') || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

/// Returns the text without white space at its end.
std::string_view without_end(std::string_view text) {
    std::size_t end = 0;
    for (std::size_t position = 0; position < text.size();) {
        const CodePoint point = decode_utf8(text, position);
        position += std::max<std::size_t>(1, static_cast<std::size_t>(point.length));
        if (point.length == 0 || !is_white(point.value)) end = position;
    }
    return text.substr(0, end);
}

/// A choice with its context: a row's inputs and targets.
struct ChoiceRow {
    std::vector<std::int32_t> ids;
    std::int64_t targets = 0;  // how many targets: the last ids
};

std::vector<ChoiceRow> rows_of(const LanguageModel& model, const ChoiceQuestion& question,
                               const std::string& where) {
    const std::int64_t longest = model.transformer.config.context + 1;
    const EncodeOptions encoding{.threads = 1};
    const std::string_view text = without_end(question.context);
    check(!text.empty(), where, ": context: only white space; expected a text");
    const std::vector<std::int32_t> context = model.tokenizer->encode(text, where + ": context", encoding);
    std::vector<ChoiceRow> rows;
    for (std::size_t i = 0; i < question.choices.size(); ++i) {
        const std::string here = concat(where, ": choice ", i + 1);
        const std::string& choice = question.choices[i];
        const bool has_space =
            text.size() < question.context.size() || is_white(decode_utf8(choice, 0).value);
        const std::vector<std::int32_t> full_ids =
            model.tokenizer->encode(question.context + (has_space ? "" : " ") + choice, here, encoding);
        const std::int64_t count = std::ssize(full_ids) - std::ssize(context);
        check(count > 0, here, ": the text has ", full_ids.size(), " tokens, and its context alone ",
              context.size(), "; expected more tokens with the choice");
        check(count < longest, here, ": ", count, " tokens; the context of the model is ", longest - 1);
        const std::int64_t kept = std::min<std::int64_t>(std::ssize(context), longest - count);
        ChoiceRow row{.ids = {context.end() - kept, context.end()}, .targets = count};
        row.ids.insert(row.ids.end(), full_ids.end() - count, full_ids.end());
        rows.push_back(std::move(row));
    }
    return rows;
}

/// The documents of a model with prefix, whose prompts are the contexts; none for other models.
Documents documents_of(const Context& ctx, const LanguageModel& model, std::span<const ChoiceRow> rows,
                       std::int64_t length) {
    if (!model.transformer.config.prefix) return {};
    std::vector<std::int64_t> prompts;
    for (const ChoiceRow& row : rows) prompts.push_back(std::ssize(row.ids) - row.targets);
    return prefix_documents(ctx, prompts, length);
}

/// Returns each row's summed loss. Rows are padded to the longest row's length.
std::vector<double> sums_of(const Context& ctx, const LanguageModel& model, std::span<const ChoiceRow> rows) {
    std::int64_t length = 0;
    for (const ChoiceRow& row : rows) length = std::max<std::int64_t>(length, std::ssize(row.ids) - 1);
    std::vector<std::int32_t> tokens, targets;
    for (const ChoiceRow& row : rows) {
        const std::size_t end = tokens.size() + static_cast<std::size_t>(length);
        tokens.insert(tokens.end(), row.ids.begin(), row.ids.end() - 1);
        targets.insert(targets.end(), tokens.size() - targets.size() - static_cast<std::size_t>(row.targets),
                       ignored_target);
        targets.insert(targets.end(), row.ids.end() - row.targets, row.ids.end());
        tokens.resize(end, 0);
        targets.resize(end, ignored_target);
    }
    const Shape shape{std::ssize(rows), length};
    const std::vector<double> losses =
        to_host(ctx, model.transformer.target_losses(ctx, from_host(ctx, tokens, shape),
                                                     from_host(ctx, targets, shape),
                                                     documents_of(ctx, model, rows, length)));
    std::vector<double> sums;
    for (std::size_t row = 0; row < rows.size(); ++row) {
        double sum = 0.0;
        for (std::int64_t i = 0; i < length; ++i)
            sum += losses[row * static_cast<std::size_t>(length) + static_cast<std::size_t>(i)];
        sums.push_back(sum);
    }
    return sums;
}

/// Returns the context for the batches. On a GPU, batches have different lengths; see generation_context().
Context choice_context(const LanguageModel& model, std::int64_t rows) {
    if (model.ctx.device().is_cpu()) return model.ctx;
    return with_arena_for(
        model.ctx.with_deterministic(true),
        [&](const Context& dry) {
            const std::int64_t context = model.transformer.config.context;
            const Tensor tokens = empty(dry, {rows, context}, DType::i32);
            const std::vector<ChoiceRow> like(static_cast<std::size_t>(rows), {.ids = {0}, .targets = 0});
            model.transformer.target_losses(dry, tokens, tokens, documents_of(dry, model, like, context));
        },
        /*slack=*/2.0);
}

template <class Loss>
std::size_t lowest(const std::vector<ChoiceLoss>& losses, const Loss& loss) {
    return static_cast<std::size_t>(std::ranges::min_element(losses, {}, loss) - losses.begin());
}

}  // namespace

std::vector<ChoiceQuestion> read_choice_questions(TextReader text) {
    const std::string source = text.name();
    std::vector<ChoiceQuestion> questions;
    std::size_t bytes = 0;
    JsonLines lines(std::move(text));
    for (JsonValue line; lines.next(line);) {
        const ChoiceQuestion& question = questions.emplace_back(question_of(line, lines.where()));
        bytes += question.context.size();
        for (const std::string& choice : question.choices) bytes += choice.size();
        check(bytes <= max_choice_bytes, lines.where(), ": the questions have more than ", max_choice_bytes,
              " bytes of text");
    }
    check(!questions.empty(), source, ": has no question");
    return questions;
}

ChoiceEvaluation evaluate_choices(const LanguageModel& model, const std::vector<ChoiceQuestion>& questions,
                                  const ChoiceOptions& options) {
    tokenizer_of(model, "eval");  // throws if there is none
    check(!questions.empty(), "eval: no question");
    check(options.batch >= 1, "eval: batch: ", options.batch, "; expected at least 1");
    std::vector<ChoiceRow> rows;
    for (std::size_t i = 0; i < questions.size(); ++i)
        for (ChoiceRow& row : rows_of(model, questions[i], concat("question ", i + 1)))
            rows.push_back(std::move(row));

    const Context ctx = choice_context(model, std::min<std::int64_t>(options.batch, std::ssize(rows)));
    std::vector<double> sums;
    while (sums.size() < rows.size()) {
        const std::size_t count =
            std::min(static_cast<std::size_t>(options.batch), rows.size() - sums.size());
        const std::vector<double> more = sums_of(ctx, model, std::span(rows).subspan(sums.size(), count));
        sums.insert(sums.end(), more.begin(), more.end());
        if (options.on_progress) options.on_progress(std::ssize(sums), std::ssize(rows));
    }

    ChoiceEvaluation result;
    std::size_t row = 0, right = 0, right_by_sum = 0;
    for (const ChoiceQuestion& question : questions) {
        ChoiceAnswer& answer = result.answers.emplace_back();
        for (std::size_t i = 0; i < question.choices.size(); ++i, ++row) {
            check(std::isfinite(sums[row]), "eval: question ", result.answers.size(), ": choice ", i + 1,
                  ": the loss is ", sums[row], "; expected a finite loss");
            answer.losses.push_back({sums[row], rows[row].targets});
        }
        answer.by_mean = lowest(answer.losses, &ChoiceLoss::mean);
        answer.by_sum = lowest(answer.losses, &ChoiceLoss::sum);
        right += answer.by_mean == question.label;
        right_by_sum += answer.by_sum == question.label;
        result.chance += 1.0 / static_cast<double>(question.choices.size());
    }
    const auto count = static_cast<double>(questions.size());
    result.accuracy = static_cast<double>(right) / count;
    result.accuracy_by_sum = static_cast<double>(right_by_sum) / count;
    result.chance /= count;
    return result;
}

}  // namespace gradtile
