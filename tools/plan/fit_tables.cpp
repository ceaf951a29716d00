#include <gradtile/tools/plan/fit_tables.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <gradtile/core/text/message.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/plan/loss_law.h>
#include <gradtile/tools/plan/planner.h>
#include <gradtile/tools/report/run_metrics.h>
#include <gradtile/train/config/step_shape.h>

namespace gradtile::cli {
namespace {

/// The law's N and D for a run with these settings.
double matrix_weights(const ModelConfig& model) {
    return static_cast<double>(model.layers * block_matrices(model).elements());
}

double training_tokens(const TrainConfig& c) {
    check(c.time_budget.empty() && c.steps > 0, "time-budget: '", c.time_budget,
          "'; the law needs the number of tokens, expected steps");
    const Growth sequences{.start = c.batch_start, .full = c.batch, .steps = c.batch_warmup};
    return static_cast<double>(sequences.sum(c.steps)) * static_cast<double>(c.model.context);
}

/// Reads config.json and metrics.jsonl in each directory. Throws Error naming a run without a validation loss
/// after its last step, or with another vocabulary than the first run's, whose losses per token cannot be
/// compared.
std::vector<TrainedRun> read_trained_runs(const std::vector<std::string>& directories) {
    std::vector<TrainedRun> runs;
    std::int64_t vocabulary = 0;
    for (const std::string& directory : directories) {
        const std::filesystem::path place(directory);
        TrainConfig config;
        apply_config_file(config, (place / "config.json").string());
        if (runs.empty()) vocabulary = config.model.vocabulary;
        const std::string name = printable_name(directory);
        with_source(name, [&] { validate(config.model); });
        check(config.model.vocabulary == vocabulary, name, ": vocabulary: ", config.model.vocabulary,
              "; expected ", vocabulary, " as in ", printable_name(directories.front()));
        const MetricsPoint last = read_run_metrics(place).points.back();
        check(last.val_loss && (last.step >= config.steps || !config.time_budget.empty()), name,
              ": no validation loss after its last step; expected a finished run");
        runs.push_back({.name = name,
                        .weights = matrix_weights(config.model),
                        .tokens = last.tokens,
                        .loss = *last.val_loss});
    }
    return runs;
}

}  // namespace

void print_cost_fit(const std::vector<std::string>& files, bool json) {
    const std::vector<Measurement> measurements = measurements_in(files);
    const CostConstants shipped = h200_constants();
    const CostFit fit = fit_constants(measurements, shipped);

    Table constants({{"constant", "constant", Column::Kind::text, 20},
                     {"value", "fitted"},
                     {"unit", "unit", Column::Kind::text, 8},
                     {"shipped", "shipped"}},
                    json);
    std::vector<double> shipped_values;
    visit_constants(shipped, [&](const char*, double value, double scale, const char*) {
        shipped_values.push_back(value / scale);
    });
    std::size_t i = 0;
    visit_constants(fit.constants, [&](const char* name, double value, double scale, const char* unit) {
        const bool determined =
            std::find(fit.undetermined.begin(), fit.undetermined.end(), name) == fit.undetermined.end();
        constants.add({name, determined ? value / scale : no_value, unit, shipped_values[i++]});
    });
    if (!json) std::printf("\n");
    Table table({{"what", "timed", Column::Kind::text, 14},
                 {"gpus", "GPUs", Column::Kind::number, 5},
                 {"description", "of", Column::Kind::text, 63},
                 {"weight", "weight", Column::Kind::number, 6},
                 {"ms", "ms"},
                 {"predicted_ms", "predicted"},
                 {"deviation_percent", "off by %"}},
                json);
    for (const Measurement& m : measurements) {
        const double predicted = predicted_ms(m, fit.constants);
        table.add({name_of(m.what), m.gpus, description_of(m), m.weight, m.ms, predicted,
                   100 * (predicted / m.ms - 1)});
    }
}

void print_predicted_loss(const TrainConfig& config, const std::vector<std::string>& directories, bool json) {
    const double weights = matrix_weights(config.model);
    const double tokens = rethrow_as_usage_error([&] { return training_tokens(config); });
    const std::vector<TrainedRun> runs = read_trained_runs(directories);
    const LossPrediction prediction = predict_loss(runs, weights, tokens);
    const LossLaw& law = prediction.law;
    Table table({{"run", "run", Column::Kind::text, 40},
                 {"weights", "M weights"},
                 {"tokens", "M tokens"},
                 {"loss", "loss", Column::Kind::number, 8},
                 {"predicted", "law", Column::Kind::number, 8},
                 {"error", "+-", Column::Kind::number, 8}},
                json);
    for (const TrainedRun& run : runs)
        table.add({run.name, 1e-6 * run.weights, 1e-6 * run.tokens, run.loss, law(run.weights, run.tokens),
                   no_value});
    table.add({std::string("predicted"), 1e-6 * weights, 1e-6 * tokens, no_value, prediction.loss,
               prediction.error});
    if (json) return;
    const auto ratio = [&](double value, double TrainedRun::*member) {
        return value / std::ranges::max(runs, {}, member).*member;
    };
    std::printf(
        "loss = %.4g + %.4g / N^%.3f + %.4g / D^%.3f, N the weights of the blocks and D the tokens; the runs "
        "deviate by %.2f%%\n"
        "predicted: %.4f +- %.4f (95%%) for %.3g times the largest run's weights and %.3g times the "
        "longest's tokens\n",
        law.irreducible, law.weight_term, law.weight_exponent, law.token_term, law.token_exponent,
        100 * prediction.deviation, prediction.loss, prediction.error, ratio(weights, &TrainedRun::weights),
        ratio(tokens, &TrainedRun::tokens));
}

}  // namespace gradtile::cli
