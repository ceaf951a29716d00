#include <gradtile/train/config/step_shape.h>

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

std::vector<std::int64_t> sizes(const Growth& growth, std::int64_t steps) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t step = 1; step <= steps; ++step) sizes.push_back(growth.at(step));
    return sizes;
}

TEST(Growth, DoublesInEqualStages) {
    EXPECT_THAT(sizes({.start = 2, .full = 16, .steps = 6}, 8),
                testing::ElementsAre(2, 2, 4, 4, 8, 8, 16, 16));
    EXPECT_THAT(sizes({.start = 3, .full = 10, .steps = 4}, 5), testing::ElementsAre(3, 3, 6, 6, 10));
    EXPECT_THAT(sizes({.start = 1, .full = 16, .steps = 2}, 3), testing::ElementsAre(1, 4, 16))
        << "more doublings than steps";
    EXPECT_THAT(sizes({.start = 0, .full = 7, .steps = 5}, 2), testing::ElementsAre(7, 7));
    EXPECT_THAT(sizes({.start = 7, .full = 7, .steps = 5}, 2), testing::ElementsAre(7, 7));
    EXPECT_THAT(test::message_of([] { Growth{}.at(0); }), testing::HasSubstr("steps count from 1"));
}

/// For any lengths: the size changes at the stages' first steps only, and the stages are as long as possible.
TEST(Growth, ChangesOnlyWhereAStageStarts) {
    for (std::int64_t start = 1; start <= 5; ++start)
        for (std::int64_t full = start; full <= 70; full += 13)
            for (std::int64_t steps = 1; steps <= 23; ++steps) {
                const Growth growth{start, full, steps};
                const std::vector<std::int64_t> starts = growth.stage_starts();
                for (std::int64_t step = 2; step <= steps + 3; ++step) {
                    EXPECT_GE(growth.at(step), growth.at(step - 1));
                    EXPECT_TRUE(growth.at(step) == growth.at(step - 1) ||
                                std::ranges::find(starts, step) != starts.end())
                        << start << ' ' << full << ' ' << steps << ' ' << step;
                }
                std::int64_t sum = 0;
                for (std::int64_t step = 1; step <= steps + 3; ++step)
                    EXPECT_EQ(growth.sum(step), sum += growth.at(step)) << step;
                EXPECT_EQ(growth.sum(0), 0);
                EXPECT_EQ(growth.at(1), start);
                EXPECT_EQ(growth.at(steps + 1), full);
            }
}

/// A small batch is one micro-batch, until it has more sequences than micro-batch.
TEST(StepShapes, DivideABatchIntoMicroBatches) {
    TrainConfig config;
    config.batch = 48;
    config.batch_start = 6;
    config.batch_warmup = 30;
    config.micro_batch = 12;
    const auto micro_batches = [&](std::int64_t ranks) {
        validate(config, ranks);
        std::vector<std::pair<std::int64_t, std::int64_t>> sizes;
        for (const StepShape& shape : StepShapes::of(config, ranks).all())
            sizes.emplace_back(shape.micro_steps, shape.micro_batch);
        return sizes;
    };
    using testing::ElementsAre;
    using testing::Pair;
    EXPECT_THAT(micro_batches(1), ElementsAre(Pair(1, 6), Pair(1, 12), Pair(2, 12), Pair(4, 12)));
    EXPECT_THAT(micro_batches(2), ElementsAre(Pair(1, 3), Pair(1, 6), Pair(1, 12), Pair(2, 12)));
    config.micro_batch = 0;
    EXPECT_THAT(micro_batches(1), ElementsAre(Pair(1, 6), Pair(1, 12), Pair(1, 24), Pair(1, 48)));
    for (std::int64_t step = 1; step < 40; ++step)
        EXPECT_EQ(2 * StepShapes::of(config, 2).sequences.sum(step),
                  StepShapes::of(config).sequences.sum(step));
}

TEST(StepShapes, HaveNoLimitOnceEveryLayerHasItsWindow) {
    TrainConfig config;
    config.model.context = 64;
    config.model.window = 32;
    config.window_start = 8;
    config.window_warmup = 10;
    const auto limits = [&] {
        std::vector<std::int64_t> limits;
        for (const StepShape& shape : StepShapes::of(config).all()) limits.push_back(shape.max_window);
        return limits;
    };
    EXPECT_THAT(limits(), testing::ElementsAre(8, 16, 0));
    config.model.window_pattern = 2;  // a layer sees the whole context
    EXPECT_THAT(limits(), testing::ElementsAre(8, 16, 32, 0));
    EXPECT_EQ(StepShapes::of(config).at(10).max_window, 32);
    EXPECT_EQ(StepShapes::of(config).at(11).max_window, 0);
    config.window_start = config.window_warmup = 0;
    EXPECT_THAT(limits(), testing::ElementsAre(0));
}

/// The loss and the gradients with a limit are those of a model whose layers have this window.
TEST(StepShapes, ALimitIsTheWindowOfEveryLayer) {
    const Context ctx(Device::cpu(), 1);
    const auto loss_and_gradients = [&](std::int64_t window, std::int64_t pattern, std::int64_t max_window) {
        ParameterStore store;
        const Transformer model({.layers = 2,
                                 .heads = 2,
                                 .width = 16,
                                 .context = 24,
                                 .vocabulary = 11,
                                 .window = window,
                                 .window_pattern = pattern},
                                store, {.recompute = Recompute::block});
        store.allocate(ctx, DType::f32);
        store.initialize(ctx, Seed{3});
        std::vector<double> ids(2 * 24);
        for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<double>(i * i % 11);
        const Tensor tokens = from_host(ctx, ids, {2, 24}, DType::i32);
        Transformer::Saved saved;
        std::vector<double> result =
            to_host(ctx, model.forward(ctx, tokens, tokens, saved, {.max_window = max_window}));
        model.backward(ctx, saved);
        for (const double gradient : to_host(ctx, store.gradients())) result.push_back(gradient);
        return result;
    };
    const std::vector<double> narrow = loss_and_gradients(5, 0, 0);
    EXPECT_EQ(loss_and_gradients(0, 0, 5), narrow);
    EXPECT_EQ(loss_and_gradients(9, 2, 5), narrow) << "of one window and one full layer";
    EXPECT_EQ(loss_and_gradients(5, 0, 24), narrow) << "a limit does not widen a window";
    EXPECT_NE(loss_and_gradients(0, 0, 0), narrow);
}

}  // namespace
}  // namespace gradtile
