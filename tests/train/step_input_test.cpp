#include <gradtile/train/step_input.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <support/cuda_test.h>
#include <support/error_message.h>

#include <gradtile/core/philox.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/data/token_file.h>

#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using testing::HasSubstr;

constexpr std::int64_t context = 8, micro_batch = 3, micro_steps = 2;
constexpr StepShape shape{.micro_steps = micro_steps, .micro_batch = micro_batch};

DataLoader loader() {
    std::vector<std::int32_t> tokens(500);
    std::iota(tokens.begin(), tokens.end(), 0);
    return DataLoader(TokenSequence(std::move(tokens), "numbers"), {.context = context, .seed = Seed{4}});
}

constexpr double rate = 1e-3;

StepInputOptions options() {
    return {.shapes = {.sequences = {.full = micro_steps * micro_batch}, .micro_batch = micro_batch},
            .seed = 9};
}

/// Checks every step's input, on any device.
void expect_steps_in_order(const Context& ctx, bool prepares_next) {
    StepInput input(ctx, loader(), options());
    DataLoader reference = loader();
    const Tensor first_place = input.micro_batch(shape, 0).tokens;
    for (std::int64_t step = 1; step <= 40; ++step) {  // several epochs
        input.prepare(step);
        input.upload(ctx, rate * static_cast<double>(step));
        if (prepares_next) input.prepare(step + 1);
        EXPECT_EQ(item(ctx, input.rate()), rate * static_cast<double>(step));
        const std::uint64_t seed = mix_seed(9, static_cast<std::uint64_t>(step));
        EXPECT_THAT(
            to_host(ctx, input.seed_tensor()),
            testing::ElementsAre(static_cast<std::int32_t>(seed), static_cast<std::int32_t>(seed >> 32)));
        std::int64_t target_count = 0;
        for (std::int64_t i = 0; i < micro_steps; ++i) {
            const Context host(Device::cpu(), 1);
            const Batch expected = empty_batch(host, micro_batch, context);
            target_count += reference.next(expected);
            EXPECT_EQ(to_host(ctx, input.micro_batch(shape, i).tokens), to_host(host, expected.tokens));
            EXPECT_EQ(to_host(ctx, input.micro_batch(shape, i).targets), to_host(host, expected.targets));
        }
        EXPECT_EQ(item(ctx, input.target_count()), static_cast<double>(target_count));
        EXPECT_EQ(input.state(), reference.state()) << "step " << step;
        EXPECT_EQ(input.micro_batch(shape, 0).tokens.raw_data(), first_place.raw_data());
    }
}

TEST(StepInput, HoldsTheLoadersBatchesInOrderAtAFixedPlace) {
    expect_steps_in_order(Context(Device::cpu(), 1), /*prepares_next=*/false);
}

using CudaStepInput = test::CudaTest;
TEST_F(CudaStepInput, HoldsTheLoadersBatchesWhileTheNextOneIsPrepared) {
    expect_steps_in_order(gpu(), /*prepares_next=*/true);
}

/// The step's windows follow each other in the loader's order, whatever the number of sequences.
TEST(StepInput, HoldsTheSequencesOfEachStepsShape) {
    const Context ctx(Device::cpu(), 1);
    const StepShapes shapes{.sequences = {.start = 2, .full = 8, .steps = 6}, .micro_batch = 4};
    StepInput input(ctx, loader(), {.shapes = shapes, .seed = 9});
    DataLoader reference = loader();
    for (std::int64_t step = 1; step <= 12; ++step) {
        input.prepare(step);
        input.upload(ctx, rate);
        const StepShape of_step = shapes.at(step);
        EXPECT_EQ(of_step.micro_steps * of_step.micro_batch, step <= 3 ? 2 : step <= 6 ? 4 : 8);
        std::int64_t target_count = 0;
        for (std::int64_t i = 0; i < of_step.micro_steps; ++i) {
            const Batch expected = empty_batch(ctx, of_step.micro_batch, context);
            target_count += reference.next(expected);
            EXPECT_EQ(to_host(ctx, input.micro_batch(of_step, i).tokens), to_host(ctx, expected.tokens));
            EXPECT_EQ(to_host(ctx, input.micro_batch(of_step, i).targets), to_host(ctx, expected.targets));
        }
        EXPECT_EQ(item(ctx, input.target_count()), static_cast<double>(target_count));
        EXPECT_EQ(input.state(), reference.state()) << "step " << step;
    }
}

/// In the ids 0, 0, ... 0, 1, 2, ..., 0 is no target. Some steps would consist only of windows of zeros.
TEST(StepInput, PassesOverWindowsWithoutATarget) {
    const Context ctx(Device::cpu(), 1);
    std::vector<std::int32_t> ids(2000);
    std::iota(ids.end() - 200, ids.end(), 1);
    const auto mostly_ignored = [&] {
        return DataLoader(TokenSequence(ids, "ids"),
                          {.context = context, .seed = Seed{4}, .ignore_token = 0});
    };
    StepInput input(ctx, mostly_ignored(), options()), resumed(ctx, mostly_ignored(), options());
    DataLoader reference = mostly_ignored();
    const Batch batch = empty_batch(ctx, micro_steps * micro_batch, context);
    std::int64_t passed_over = 0;
    for (std::int64_t step = 1; step <= 40; ++step) {
        std::int64_t expected = 0;
        while ((expected = reference.next(batch)) == 0) ++passed_over;
        input.prepare(step);
        input.upload(ctx, rate);
        EXPECT_EQ(item(ctx, input.target_count()), static_cast<double>(expected)) << step;
        EXPECT_EQ(input.state(), reference.state()) << step;
        EXPECT_EQ(to_host(ctx, input.micro_batch(shape, 0).targets),
                  to_host(ctx, batch.targets.slice(0, 0, micro_batch)));
    }
    EXPECT_GT(passed_over, 5);
    resumed.restore(input.state());
    for (StepInput* const each : {&input, &resumed}) {
        each->prepare(41);
        each->upload(ctx, rate);
    }
    EXPECT_EQ(to_host(ctx, resumed.micro_batch(shape, 0).targets),
              to_host(ctx, input.micro_batch(shape, 0).targets));
}

TEST(StepInput, ContinuesFromASavedState) {
    const Context ctx(Device::cpu(), 1);
    StepInput uninterrupted(ctx, loader(), options()), resumed(ctx, loader(), options());
    for (std::int64_t step = 1; step <= 9; ++step) {
        uninterrupted.prepare(step);
        uninterrupted.upload(ctx, rate);
    }
    resumed.restore(uninterrupted.state());
    EXPECT_EQ(resumed.state(), uninterrupted.state());
    for (StepInput* input : {&uninterrupted, &resumed}) {
        input->prepare(10);
        input->upload(ctx, rate);
    }
    EXPECT_EQ(to_host(ctx, resumed.micro_batch(shape, 1).tokens),
              to_host(ctx, uninterrupted.micro_batch(shape, 1).tokens));
}

TEST(StepInput, PreparesAStepOnceAndNeverSkipsOne) {
    const Context ctx(Device::cpu(), 1);
    StepInput input(ctx, loader(), options());
    EXPECT_THAT(test::message_of([&] { input.upload(ctx, rate); }), HasSubstr("nothing is prepared"));
    input.prepare(1);
    input.prepare(1);
    EXPECT_THAT(test::message_of([&] { input.prepare(2); }), HasSubstr("step 1 is prepared"));
    input.upload(ctx, rate);
    DataLoader reference = loader();
    const Batch batch = empty_batch(ctx, micro_steps * micro_batch, context);
    reference.next(batch);
    EXPECT_EQ(input.state(), reference.state());
}

TEST(StepInput, ARefusalTakesNoDataAndOverflowsGradients) {
    const Context ctx(Device::cpu(), 1);
    StepInput input(ctx, loader(), options());
    input.prepare(1);
    input.upload(ctx, rate);
    const JsonValue before = input.state();
    input.prepare_refusal(2);
    input.upload(ctx, rate, 1.0);
    const double target_weight = 1.0 / item(ctx, input.target_count());
    EXPECT_TRUE(std::isinf(static_cast<float>(target_weight)));
    EXPECT_THAT(to_host(ctx, input.micro_batch(shape, 0).tokens), testing::Each(0.0));
    EXPECT_EQ(item(ctx, input.vote()), 1.0);
    EXPECT_EQ(input.state(), before);
}

TEST(StepInput, AStepThatCannotBeReadLeavesNothingPrepared) {
    const Context ctx(Device::cpu(), 1);
    const test::TemporaryDirectory place;
    const std::string path = place / "numbers.bin";
    std::vector<std::int32_t> numbers(500);
    std::iota(numbers.begin(), numbers.end(), 0);
    write_token_file(path, TokenFormat::headerless, numbers);
    StepInput input(ctx, DataLoader(open_token_file(path).tokens, {.context = context, .seed = Seed{4}}),
                    options());
    DataLoader reference = loader();
    const Batch expected = empty_batch(ctx, micro_steps * micro_batch, context);
    input.prepare(1);
    input.upload(ctx, rate);
    reference.next(expected);
    const JsonValue after_one = input.state();
    // The file is so short that only some of step 2's micro-steps can be read.
    const std::string contents = test::contents_of(path);
    std::filesystem::resize_file(path, 600);
    EXPECT_THAT(test::message_of([&] { input.prepare(2); }), HasSubstr("ends at byte 600; expected 1000"));
    EXPECT_EQ(input.state(), after_one);
    EXPECT_THAT(test::message_of([&] { input.upload(ctx, rate); }), HasSubstr("nothing is prepared"));
    std::ofstream(path, std::ios::binary) << contents;  // the same file; write_token_file() would replace it
    input.prepare(2);
    input.upload(ctx, rate);
    reference.next(expected);
    EXPECT_EQ(input.state(), reference.state());
    EXPECT_EQ(to_host(ctx, input.micro_batch(shape, 1).tokens),
              to_host(ctx, expected.tokens.slice(0, micro_batch, micro_batch)));
}

}  // namespace
}  // namespace gradtile
