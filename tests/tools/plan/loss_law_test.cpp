#include <gradtile/tools/plan/loss_law.h>

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include <gradtile/core/check.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;

/// Constants of the size that Hoffmann et al. 2022 found, with more curvature.
constexpr LossLaw planted{.irreducible = 1.7,
                          .weight_term = 400,
                          .token_term = 2000,
                          .weight_exponent = 0.36,
                          .token_exponent = 0.45};

/// Runs of four sizes with three token counts each.
std::vector<TrainedRun> runs_of(const LossLaw& law) {
    std::vector<TrainedRun> runs;
    for (const double weights : {3.1e6, 10.6e6, 25.2e6, 84.9e6})
        for (const double tokens : {6.6e6, 13.1e6, 26.2e6})
            runs.push_back({"run", weights, tokens, law(weights, tokens)});
    return runs;
}

TEST(LossLaw, ExactRunsGiveBackTheLaw) {
    const LossLaw fit = fit_loss_law(runs_of(planted));
    EXPECT_NEAR(fit.irreducible, planted.irreducible, 1e-3);
    EXPECT_NEAR(fit.weight_exponent, planted.weight_exponent, 1e-3);
    EXPECT_NEAR(fit.token_exponent, planted.token_exponent, 1e-3);
    const LossPrediction bigger = predict_loss(runs_of(planted), 4e8, 2e8);
    EXPECT_NEAR(bigger.loss, planted(4e8, 2e8), 1e-4);
    EXPECT_LT(bigger.error, 1e-3);
}

/// With the intended 95%, fewer than 34 of 40 have a probability below 2%; the draws are always the same. A
/// bar of any size would pass that alone, so its mean is limited to 15 times the noise, at five times the
/// largest run's weights.
TEST(LossLaw, PredictionFromNoisyRunsIsWithinItsBar) {
    constexpr double noise = 0.005, weights = 4e8, tokens = 5e7;
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    int within = 0;
    double errors = 0;
    for (int draw = 0; draw < 20; ++draw) {
        std::vector<TrainedRun> runs = runs_of(planted);
        for (TrainedRun& run : runs) run.loss *= std::exp(noise * normal(random));
        const LossPrediction prediction = predict_loss(runs, weights, tokens);
        const double truth = planted(weights, tokens) * std::exp(noise * normal(random));
        within += std::abs(prediction.loss - truth) <= prediction.error;
        errors += prediction.error / prediction.loss / 20;
    }
    EXPECT_GE(within, 17);
    EXPECT_LT(errors, 15 * noise);
}

TEST(LossLaw, OneBadRunMovesThePredictionLittle) {
    std::vector<TrainedRun> runs = runs_of(planted);
    runs[4].loss *= 1.5;
    EXPECT_NEAR(fit_loss_law(runs)(4e8, 2e8), planted(4e8, 2e8), 0.02);
}

TEST(LossLaw, TooFewRunsAreRefused) {
    const std::vector<TrainedRun> runs = runs_of(planted);
    const auto refusal = [](std::vector<TrainedRun> some) { return message_of([&] { fit_loss_law(some); }); };
    EXPECT_EQ(refusal({runs.begin(), runs.begin() + 5}),
              "loss: 5 runs; a law with 5 constants needs at least 6");
    EXPECT_EQ(refusal({runs.begin(), runs.begin() + 6}), "loss: runs of 2 sizes; expected at least 3");
    std::vector<TrainedRun> one_length = runs;
    for (TrainedRun& run : one_length) run.tokens = 1e7;
    EXPECT_EQ(refusal(one_length), "loss: runs with 1 token counts; expected at least 3");
    std::vector<TrainedRun> broken = runs;
    broken[3].loss = NAN;
    EXPECT_EQ(refusal(broken), "run: validation loss: nan; expected a finite number above 0");
}

}  // namespace
}  // namespace gradtile
