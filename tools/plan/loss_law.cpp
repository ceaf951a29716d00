#include <gradtile/tools/plan/loss_law.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/tools/plan/least_squares.h>

namespace gradtile {
namespace {

constexpr std::size_t min_runs = 6, min_sizes = 3, constants = 5;

void check_runs(std::span<const TrainedRun> runs) {
    std::set<double> weights, tokens;
    for (const TrainedRun& run : runs) {
        for (const auto& [what, value] :
             {std::pair{"weights", run.weights}, {"tokens", run.tokens}, {"validation loss", run.loss}})
            check(std::isfinite(value) && value > 0.0, run.name, ": ", what, ": ", value,
                  "; expected a finite number above 0");
        weights.insert(run.weights);
        tokens.insert(run.tokens);
    }
    check(runs.size() >= min_runs, "loss: ", runs.size(), " runs; a law with ", constants,
          " constants needs at least ", min_runs);
    check(weights.size() >= min_sizes, "loss: runs of ", weights.size(), " sizes; expected at least ",
          min_sizes);
    check(tokens.size() >= min_sizes, "loss: runs with ", tokens.size(), " token counts; expected at least ",
          min_sizes);
}

/// The law's constants as logarithms, with N and D relative to typical runs, so that all constants are of
/// order one.
struct Scaled {
    double weights = 1.0, tokens = 1.0;  ///< geometric means

    explicit Scaled(std::span<const TrainedRun> runs) {
        double log_weights = 0.0, log_tokens = 0.0;
        for (const TrainedRun& run : runs) {
            log_weights += std::log(run.weights);
            log_tokens += std::log(run.tokens);
        }
        weights = std::exp(log_weights / static_cast<double>(runs.size()));
        tokens = std::exp(log_tokens / static_cast<double>(runs.size()));
    }
    LossLaw law(const std::vector<double>& logs) const {
        const double weight_exponent = std::exp(logs[3]), token_exponent = std::exp(logs[4]);
        return {.irreducible = std::exp(logs[0]),
                .weight_term = std::exp(logs[1]) * std::pow(weights, weight_exponent),
                .token_term = std::exp(logs[2]) * std::pow(tokens, token_exponent),
                .weight_exponent = weight_exponent,
                .token_exponent = token_exponent};
    }
    std::vector<double> logs(const LossLaw& law) const {
        return {std::log(law.irreducible),
                std::log(law.weight_term) - law.weight_exponent * std::log(weights),
                std::log(law.token_term) - law.token_exponent * std::log(tokens),
                std::log(law.weight_exponent), std::log(law.token_exponent)};
    }
};

double deviation_of(const TrainedRun& run, const LossLaw& law) {
    return std::log(law(run.weights, run.tokens)) - std::log(run.loss);
}

/// Returns numbers whose squares are twice the Huber losses.
std::vector<double> huber_roots(std::span<const TrainedRun> runs, const LossLaw& law) {
    constexpr double delta = 1e-3;
    std::vector<double> roots;
    for (const TrainedRun& run : runs) {
        const double deviation = deviation_of(run, law), size = std::abs(deviation);
        roots.push_back(size <= delta ? deviation
                                      : std::copysign(std::sqrt(delta * (2 * size - delta)), deviation));
    }
    return roots;
}

/// Student's t: with this many degrees of freedom 95% of deviates are within so many standard errors.
double errors_of_95_percent(std::size_t freedom) {
    constexpr std::array table{12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23};
    // Within 0.01 for more degrees of freedom.
    return freedom <= table.size() ? table[freedom - 1] : 1.96 + 2.7 / static_cast<double>(freedom);
}

LeastSquares fit_from(std::span<const TrainedRun> runs, const Scaled& scaled, std::vector<double> start) {
    return least_squares([&](const std::vector<double>& logs) { return huber_roots(runs, scaled.law(logs)); },
                         std::move(start));
}

}  // namespace

double LossLaw::operator()(double weights, double tokens) const {
    return irreducible + weight_term / std::pow(weights, weight_exponent) +
           token_term / std::pow(tokens, token_exponent);
}

LossLaw fit_loss_law(std::span<const TrainedRun> runs) {
    check_runs(runs);
    const Scaled scaled(runs);
    const double lowest = std::ranges::min(runs, {}, &TrainedRun::loss).loss;
    LeastSquares best{.point = {}, .sum = std::numeric_limits<double>::infinity()};
    for (int start = 0; start < 1 << constants; ++start) {
        const auto pick = [&](int bit, double low, double high) {
            return std::log(start >> bit & 1 ? high : low);
        };
        LeastSquares fit =
            fit_from(runs, scaled,
                     {pick(0, 0.5 * lowest, 0.9 * lowest), pick(1, 0.1 * lowest, 0.5 * lowest),
                      pick(2, 0.1 * lowest, 0.5 * lowest), pick(3, 0.3, 1.0), pick(4, 0.3, 1.0)});
        if (fit.sum < best.sum) best = std::move(fit);
    }
    return scaled.law(best.point);
}

LossPrediction predict_loss(std::span<const TrainedRun> runs, double weights, double tokens) {
    LossPrediction result{.law = fit_loss_law(runs)};
    result.loss = result.law(weights, tokens);
    const auto n = static_cast<double>(runs.size());
    std::vector<double> without_one;  // logarithms of the predictions
    double squares = 0.0;
    for (std::size_t left_out = 0; left_out < runs.size(); ++left_out) {
        std::vector<TrainedRun> others(runs.begin(), runs.end());
        others.erase(others.begin() + static_cast<std::ptrdiff_t>(left_out));
        const Scaled scaled(others);
        const LossLaw law = scaled.law(fit_from(others, scaled, scaled.logs(result.law)).point);
        without_one.push_back(std::log(law(weights, tokens)));
        squares += std::pow(deviation_of(runs[left_out], result.law), 2);
    }
    double mean = 0.0, spread = 0.0;
    for (const double prediction : without_one) mean += prediction / n;
    for (const double prediction : without_one) spread += std::pow(prediction - mean, 2);
    result.deviation = std::sqrt(squares / (n - static_cast<double>(constants)));
    // Tukey 1958: the jackknife's variance is the spread times (n - 1) / n.
    result.error = errors_of_95_percent(runs.size() - constants) * result.loss *
                   std::hypot(std::sqrt(spread * (n - 1) / n), result.deviation);
    return result;
}

}  // namespace gradtile
