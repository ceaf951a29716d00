// Compares the gradients with finite differences in float64, for every input and all algorithms.
#include <gradtile/core/gradcheck.h>

#include "attention_testing.h"

namespace gradtile::attention::test {
namespace {

/// Attention with the interface that gradient_check() needs.
struct Operator {
    Options options;
    Saved saved = {};

    Tensor forward(const Context& ctx, const std::vector<Tensor>& qkv) {
        return attention::forward(ctx, qkv[0], qkv[1], qkv[2], options, saved);
    }
    std::vector<Tensor> backward(const Context& ctx, const std::vector<Tensor>&, const Tensor& d_o) {
        const Gradients gradients = attention::backward(ctx, d_o, options, saved);
        return {gradients.q, gradients.k, gradients.v};
    }
};

void expect_gradients_are_right(const Problem& problem) {
    const Context ctx(Device::cpu(), 2);
    const Inputs in = random_inputs(ctx, problem, DType::f64);
    for (const Algorithm algorithm : algorithms) {
        SCOPED_TRACE(::testing::Message() << algorithm << ": " << problem);
        const GradientReport report =
            gradient_check(ctx, Operator{problem.options(algorithm)}, {in.q, in.k, in.v},
                           {.elements = 32, .names = {"q", "k", "v"}});
        EXPECT_TRUE(report.ok()) << report;
    }
}

// Every row sees at least two keys. A row that sees one key has P = 1 and dQ = dK = 0, and the computed
// values are only rounding errors.
TEST(AttentionGradient, IsRightForOneRowAndForTwoKeys) {
    expect_gradients_are_right({.queries = 1, .keys = 2, .d_qk = 1, .d_v = 1});
    expect_gradients_are_right({.queries = 1, .keys = 70, .d_qk = 8, .d_v = 8});
    expect_gradients_are_right({.queries = 70, .keys = 2, .d_qk = 8, .d_v = 8});
}
TEST(AttentionGradient, IsRightOverSeveralBlocks) {
    expect_gradients_are_right({.queries = 70, .keys = 140, .d_qk = 16, .d_v = 16});
    expect_gradients_are_right({.queries = 140, .keys = 140, .d_qk = 16, .d_v = 16, .causal = true});
}
TEST(AttentionGradient, IsRightForUnequalHeadDims) {
    expect_gradients_are_right({.queries = 40, .keys = 50, .d_qk = 7, .d_v = 33, .causal = true});
    expect_gradients_are_right({.queries = 40, .keys = 50, .d_qk = 33, .d_v = 7});
}
TEST(AttentionGradient, IsRightForRowsWithoutVisibleKeys) {
    expect_gradients_are_right({.queries = 90, .keys = 33, .d_qk = 8, .d_v = 8, .causal = true});
    expect_gradients_are_right(
        {.queries = 33, .keys = 90, .d_qk = 8, .d_v = 8, .causal = true, .top_left = true});
}
TEST(AttentionGradient, IsRightUnderWindows) {
    expect_gradients_are_right(
        {.queries = 100, .keys = 120, .d_qk = 8, .d_v = 8, .window = {.left = 9, .right = 70}});
    expect_gradients_are_right(
        {.queries = 100, .keys = 70, .d_qk = 8, .d_v = 8, .window = {.left = 1, .right = 0}});
}
TEST(AttentionGradient, IsSummedOverTheQueryHeadsOfAKeyHead) {
    for (const std::int64_t key_heads : {1, 2, 4})
        expect_gradients_are_right({.queries = 20,
                                    .keys = 70,
                                    .d_qk = 8,
                                    .d_v = 8,
                                    .causal = true,
                                    .batch = 2,
                                    .heads = 4,
                                    .key_heads = key_heads});
}
TEST(AttentionGradient, IsRightForAnyScale) {
    for (const double scale : {-0.7, 0.0, 1.5})
        expect_gradients_are_right({.queries = 20, .keys = 30, .d_qk = 8, .d_v = 8, .scale = scale});
}

}  // namespace
}  // namespace gradtile::attention::test
