#pragma once
/// Multiple-choice tasks in the style of HellaSwag: which ending does the model find most likely?
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/train/model/language_model.h>

namespace gradtile {

struct ChoiceQuestion {
    std::string context;
    std::vector<std::string> choices;
    std::size_t label = 0;  ///< index of the right choice
};

/// Returns the questions of a file's text: JSON Lines with "ctx" or "context", "endings" or "choices", and
/// "label" (an index, as a number or as text). Other members and empty lines are skipped. Throws Error
/// "SOURCE: line N: ..." naming what was expected.
std::vector<ChoiceQuestion> parse_choice_questions(std::string_view text, std::string_view source);

/// A choice's loss: the sum of -ln p over its tokens, given the context.
struct ChoiceLoss {
    double sum = 0.0;
    std::int64_t tokens = 0;
    double mean() const { return sum / static_cast<double>(tokens); }
};

struct ChoiceAnswer {
    std::vector<ChoiceLoss> losses;
    /// The choice with the lowest loss; if several have the lowest loss, the first of them.
    std::size_t by_mean = 0, by_sum = 0;
};

struct ChoiceEvaluation {
    std::vector<ChoiceAnswer> answers;
    double accuracy = 0.0;         ///< part of the questions whose choice of lowest mean loss is right
    double accuracy_by_sum = 0.0;  ///< the accuracy if choices are compared by the sum of the losses
    double chance = 0.0;           ///< accuracy of guessing: the mean of 1 / choices
    /// (accuracy - chance) / (1 - chance)
    double centred() const { return (accuracy - chance) / (1.0 - chance); }
};

struct ChoiceOptions {
    std::int64_t batch = 12;  ///< choices evaluated at once; changes the result only by rounding
    std::function<void(std::int64_t choices_done, std::int64_t choices)> on_progress = {};
};

/// Scores every choice after its context, as lm-evaluation-harness does. A blank is put between them unless
/// the context ends or the choice begins with white space. White space at the end of the context belongs to
/// the choice. The ids of the choice are those that the whole text has beyond the number of the context's
/// ids; the context is encoded alone. No token is put before the context. If both together have more than the
/// model's context + 1 tokens, the first tokens of the context are left out.
///
/// Throws Error that names the question when its context is empty or white space, when a choice is empty,
/// when the tokens of a text are not more than those of its context, when a choice is longer than the model's
/// context, or when the tokenizer cannot encode it.
ChoiceEvaluation evaluate_choices(const LanguageModel& model, const std::vector<ChoiceQuestion>& questions,
                                  const ChoiceOptions& options = {});

}  // namespace gradtile
