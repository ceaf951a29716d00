#pragma once
/// Multiple-choice tasks as in HellaSwag: which ending does the model find most likely?
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gradtile/train/data/readers/byte_source.h>
#include <gradtile/train/model/language_model.h>

namespace gradtile {

struct ChoiceQuestion {
    std::string context;
    std::vector<std::string> choices;
    std::size_t label = 0;  ///< the right choice's index
};

/// The most text that questions may have: they are held in memory, and a compressed file may hold any number.
constexpr std::size_t max_choice_bytes = std::size_t{1} << 30;

/// Returns a file's questions: JSON Lines with "ctx" or "context", "endings" or "choices", and "label" (an
/// index, as a number or as text). Other members and empty lines are skipped. Each line is checked before the
/// next one is read. Throws Error "FILE: line N: ..." naming what was expected.
std::vector<ChoiceQuestion> read_choice_questions(TextReader text);

/// A choice's loss: the sum of -ln p over its tokens, given the context.
struct ChoiceLoss {
    double sum = 0.0;
    std::int64_t tokens = 0;
    double mean() const { return sum / static_cast<double>(tokens); }
};

struct ChoiceAnswer {
    std::vector<ChoiceLoss> losses;
    /// The choice with the lowest loss; the first choice if several have the lowest loss.
    std::size_t by_mean = 0, by_sum = 0;
};

struct ChoiceEvaluation {
    std::vector<ChoiceAnswer> answers;
    double accuracy = 0.0;         ///< fraction of questions where the choice with the lowest mean loss is
                                   ///< right
    double accuracy_by_sum = 0.0;  ///< the accuracy if choices are compared by their summed losses
    double chance = 0.0;           ///< the accuracy when guessing: the mean of 1 / choices
    /// (accuracy - chance) / (1 - chance)
    double centred() const { return (accuracy - chance) / (1.0 - chance); }
};

struct ChoiceOptions {
    std::int64_t batch = 12;  ///< choices evaluated at once; changes the result only by rounding
    std::function<void(std::int64_t choices_done, std::int64_t choices)> on_progress = {};
};

/// Scores every choice after its context, as lm-evaluation-harness does. A blank is put between them unless
/// the context ends or the choice begins with white space. White space at the context's end belongs to the
/// choice. The context is encoded alone, with n ids; the choice's ids are the whole text's ids after the
/// first n. No token is put before the context. If both together have more than the model's context + 1
/// tokens, the context's first tokens are left out.
///
/// Throws Error that names the question when its context is empty or white space, when a choice is empty,
/// when the whole text has no more tokens than its context, when a choice is longer than the model's context,
/// when the tokenizer cannot encode it, or when the loss of a choice is infinite or NaN.
ChoiceEvaluation evaluate_choices(const LanguageModel& model, const std::vector<ChoiceQuestion>& questions,
                                  const ChoiceOptions& options = {});

}  // namespace gradtile
