#include <gradtile/train/config/recipe.h>

#include <cmath>

#include <gtest/gtest.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;

double step_tokens(const TrainConfig& c) {
    return static_cast<double>(c.batch * c.model.context);
}

TEST(Recipe, SizesGrowWithDepthAndDivideEachOther) {
    double tokens = 0;
    TrainConfig before;
    for (std::int64_t depth = recipe::min_depth; depth <= recipe::max_depth; ++depth) {
        const TrainConfig c = preset(preset_of_depth(depth));
        SCOPED_TRACE(depth);
        EXPECT_EQ(c.model.layers, depth);
        EXPECT_EQ(c.model.width, 64 * depth);
        EXPECT_EQ(c.model.head_dim(), depth % 2 == 0 ? 128 : 64);
        EXPECT_EQ(c.model.heads * c.model.head_dim(), c.model.width);
        EXPECT_EQ(c.model.hidden_width(), 4 * c.model.width);
        EXPECT_EQ(c.batch % c.micro_batch, 0);
        // The step count is an integer, so the budget is met within half a step.
        const double budget = 20.0 * 12 * static_cast<double>(depth * c.model.width * c.model.width);
        EXPECT_EQ(recipe_tokens(depth), budget);
        EXPECT_LE(std::abs(static_cast<double>(c.steps) * step_tokens(c) - budget), step_tokens(c) / 2);
        EXPECT_GT(budget, tokens);
        if (depth > recipe::min_depth) {
            EXPECT_GE(c.batch, before.batch);
            EXPECT_LT(c.lr, before.lr);
            EXPECT_NEAR(c.lr * c.vector_lr_factor, before.lr * before.vector_lr_factor, 1e-15);
        }
        tokens = budget;
        before = c;
    }
}

TEST(Recipe, SpeedrunIsItsMeasuredRun) {
    TrainConfig speedrun = preset("speedrun");
    EXPECT_EQ(speedrun.steps, 200);
    EXPECT_EQ(speedrun.batch, 64);
    EXPECT_EQ(speedrun.micro_batch, 64);
    EXPECT_EQ(speedrun.model.context, 1024);
    EXPECT_EQ(speedrun.lr, 1e-3);
    EXPECT_EQ(speedrun.vector_lr_factor, 15);
    EXPECT_EQ(speedrun.model.heads, 6);
    EXPECT_EQ(speedrun.window_warmup, speedrun.steps / 2);
    // The same depth with more tokens differs only in its length, and its windows do not grow.
    const TrainConfig longer = preset("depth-12");
    speedrun.steps = longer.steps;
    speedrun.batch = longer.batch;
    speedrun.out = longer.out;
    speedrun.window_start = speedrun.window_warmup = 0;
    EXPECT_EQ(to_json(speedrun), to_json(longer));
}

/// modded-nanogpt's track 3 trains this size with 3,250 steps of 524,288 tokens.
TEST(Recipe, BatchRuleMeetsBothOfItsPoints) {
    const TrainConfig c = recipe_config(12, 3250 * 524288.0);
    EXPECT_EQ(step_tokens(c), 524288);
    EXPECT_EQ(c.steps, 3250);
    std::int64_t batch = 0;
    for (double tokens = 1; tokens < 1e12; tokens *= 3) {
        const TrainConfig any = recipe_config(12, tokens);
        EXPECT_GE(any.batch, batch) << tokens;
        EXPECT_GE(any.steps, 1) << tokens;
        EXPECT_NO_THROW(validate(any)) << tokens;
        batch = any.batch;
    }
}

TEST(Recipe, OtherDepthsAreRefused) {
    EXPECT_EQ(message_of([] { recipe_config(3, 1e6); }), "depth: 3; expected 4 to 20");
    EXPECT_EQ(message_of([] { recipe_config(21, 1e6); }), "depth: 21; expected 4 to 20");
}

}  // namespace
}  // namespace gradtile
