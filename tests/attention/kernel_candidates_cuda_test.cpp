// Every way in which this build can compute a call on the GPU gives accurate results.
#include <algorithm>
#include <string>
#include <vector>

#include <gradtile/attention/internal/flash_plan.h>

#include "cuda_fixture.h"

namespace gradtile::attention::test {
namespace {

class AttentionCudaCandidates : public AttentionCudaDtypes {
  protected:
    /// Runs each candidate's backward pass after the policy's forward pass, as bench attention --tune does.
    void expect_all_accurate(const Problem& problem, bool deterministic = false) const {
        SCOPED_TRACE(::testing::Message() << problem << ' ' << GetParam());
        const DType dtype = GetParam();
        const Inputs in = random_inputs(cpu, problem, dtype), moved = on_gpu(in);
        const Result naive = run(cpu, in, problem.options(Algorithm::naive));
        const Reference reference = float64_reference(cpu, problem, in, roundoff_of(dtype, Device::cuda(0)));
        Options options = moved.with_tensors(problem.options(Algorithm::flash));
        options.deterministic = deterministic;
        Saved saved;
        forward(gpu(), moved.q, moved.k, moved.v, options, saved);
        const auto expect_accurate = [&](const std::vector<FlashPlan>& plans) {
            EXPECT_EQ(plans.front().choice, KernelChoice{});
            for (const FlashPlan& plan : plans) {
                SCOPED_TRACE(::testing::Message() << plan);
                Options planned = options;
                planned.kernels = plan.choice;
                expect_as_accurate_as(naive, run(gpu(), moved, planned), reference, factors_of(dtype));
            }
        };
        expect_accurate(forward_plans(gpu(), moved.q, moved.k, moved.v, options));
        expect_accurate(backward_plans(gpu(), options, saved));
    }
};

TEST_P(AttentionCudaCandidates, OfManyQueriesAreAccurate) {
    for (const std::int64_t d : {32, 64, 80, 128, 192, 256}) {
        Problem problem{.queries = 290,
                        .keys = 333,
                        .d_qk = d,
                        .d_v = d,
                        .causal = true,
                        .batch = 2,
                        .heads = 4,
                        .key_heads = 2};
        expect_all_accurate(problem);
        problem.causal = false;
        problem.queries = 400;
        expect_all_accurate(problem);
    }
}

TEST_P(AttentionCudaCandidates, OfFewQueriesAreAccurate) {
    for (const std::int64_t d : {64, 112, 128})
        for (const std::int64_t queries : {3, 20})
            expect_all_accurate({.queries = queries,
                                 .keys = 1500,
                                 .d_qk = d,
                                 .d_v = d,
                                 .causal = true,
                                 .batch = 2,
                                 .heads = 4,
                                 .key_heads = 2});
}

TEST_P(AttentionCudaCandidates, OfFewQueriesIncludeBothKernelsOnHopper) {
    for (const std::int64_t queries : {40, 1}) {
        const Problem problem{
            .queries = queries, .keys = 9000, .d_qk = 128, .d_v = 128, .heads = 2, .key_heads = 2};
        const Inputs in = on_gpu(random_inputs(cpu, problem, GetParam()));
        const Options options = problem.options(Algorithm::flash);
        const std::string explanation = explain_forward(gpu(), in.q, in.k, in.v, options);
        if (queries == 40 && explanation.find("Hopper's asynchronous products") == std::string::npos)
            GTEST_SKIP() << "no Hopper kernels: " << explanation;
        const std::vector<FlashPlan> plans = forward_plans(gpu(), in.q, in.k, in.v, options);
        for (const Family family : {Family::few_sm90, Family::few_sm80})
            EXPECT_TRUE(
                std::ranges::any_of(plans, [&](const FlashPlan& plan) { return plan.family == family; }))
                << family << " for " << queries << " queries";
        EXPECT_EQ(plans.front().family, queries > 32 ? Family::few_sm90 : Family::few_sm80);
    }
}

TEST_P(AttentionCudaCandidates, WithoutAFixedOrderOrWithRulesAreAccurate) {
    Problem problem{
        .queries = 200, .keys = 210, .d_qk = 64, .d_v = 64, .causal = true, .heads = 3, .key_heads = 3};
    expect_all_accurate(problem, /*deterministic=*/true);
    problem.alibi = true;
    expect_all_accurate(problem);
}

TEST_P(AttentionCudaCandidates, OfManyShortHeadsAreAccurateAndIncludeHopper) {
    const Problem problem{.queries = 70,
                          .keys = 70,
                          .d_qk = 64,
                          .d_v = 64,
                          .causal = true,
                          .batch = 16,
                          .heads = 16,
                          .key_heads = 16};
    expect_all_accurate(problem);
}

TEST_P(AttentionCudaCandidates, TilesWithoutAKernelAreRefused) {
    const Problem problem{.queries = 200, .keys = 210, .d_qk = 64, .d_v = 64, .heads = 2, .key_heads = 2};
    const Inputs in = on_gpu(random_inputs(cpu, problem, GetParam()));
    const std::string explanation = explain_forward(gpu(), in.q, in.k, in.v, problem.options());
    if (explanation.find("Hopper's asynchronous products") == std::string::npos)
        GTEST_SKIP() << "no Hopper kernels: " << explanation;
    Options options = problem.options();
    options.kernels = {.forward_tiles = 1000};
    try {
        run(gpu(), in, options);
        ADD_FAILURE() << "no Error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("attention: "), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("tiles"), std::string::npos) << error.what();
    }
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, AttentionCudaCandidates, testing::Values(DType::bf16, DType::f16),
                         [](const auto& parameter) { return std::string(name_of(parameter.param)); });

}  // namespace
}  // namespace gradtile::attention::test
