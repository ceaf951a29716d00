#include <gradtile/tools/plan/trained_runs.h>

#include <filesystem>

#include <gradtile/core/text/message.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/tools/report/run_metrics.h>
#include <gradtile/train/config/step_shape.h>

namespace gradtile::cli {

double matrix_weights(const ModelConfig& model) {
    return static_cast<double>(model.layers * block_matrices(model).elements());
}

double training_tokens(const TrainConfig& c) {
    check(c.time_budget.empty() && c.steps > 0, "time-budget: '", c.time_budget,
          "'; the law needs the number of tokens, expected steps");
    const Growth sequences{.start = c.batch_start, .full = c.batch, .steps = c.batch_warmup};
    return static_cast<double>(sequences.sum(c.steps)) * static_cast<double>(c.model.context);
}

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
        check(last.val_loss && (last.step == config.steps || !config.time_budget.empty()), name,
              ": no validation loss after its last step; expected a finished run");
        runs.push_back({.name = name,
                        .weights = matrix_weights(config.model),
                        .tokens = last.tokens,
                        .loss = *last.val_loss});
    }
    return runs;
}

}  // namespace gradtile::cli
