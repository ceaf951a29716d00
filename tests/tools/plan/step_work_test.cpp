#include <gradtile/tools/plan/step_work.h>

#include <gtest/gtest.h>

#include <gradtile/layers/transformer/transformer.h>

namespace gradtile {
namespace {

ModelConfig gpt2_style() {
    return {.layers = 3, .heads = 2, .width = 32, .context = 40, .vocabulary = 64};
}
ModelConfig llama_style() {
    return as_llama({.layers = 3, .heads = 4, .kv_heads = 2, .width = 32, .context = 40, .vocabulary = 64});
}

Work step_total(const StepWork& work, std::int64_t layers) {
    return work.embed_forward + static_cast<double>(layers) * (work.block_forward + work.block_backward) +
           work.head + work.embed_backward;
}

/// flops_per_token() counts attention without the scores that backward recomputes: 12 of 14 products. Its
/// vocabulary is not padded, so the vocabularies here are multiples of 64.
TEST(StepWork, FlopsAreThoseOfTheModelAndRecomputedScores) {
    for (const ModelConfig& model : {gpt2_style(), llama_style()}) {
        const Work work = step_total(step_work(model, DType::bf16, 5), model.layers);
        const double rows = 5 * 40;
        const double expected = rows * flops_per_token(model, model.context);
        EXPECT_NEAR(work.product_flops + work.attention_flops * 12 / 14, expected, 1e-12 * expected);
        EXPECT_NEAR(work.blocks, static_cast<double>(model.layers), 1e-12);
    }
}

/// The expected element counts for one row of width C without biases: 8 C for the norms in forward and in
/// backward, and 4 C for GELU's input in forward and in backward.
TEST(StepWork, BytesOfABlockAreThoseOfItsPasses) {
    ModelConfig model = gpt2_style();
    model.bias = false;
    const StepWork work = step_work(model, DType::bf16, 1);
    const double row = 40 * 32 * 2;
    EXPECT_DOUBLE_EQ(work.block_forward.bytes, 12 * row);
    EXPECT_DOUBLE_EQ(work.block_backward.bytes, 12 * row);
    model.bias = true;  // the output gradients, with 3 C, C, 4 C and C elements, are read once more
    EXPECT_DOUBLE_EQ(step_work(model, DType::bf16, 1).block_backward.bytes, 21 * row);
    EXPECT_DOUBLE_EQ(step_work(model, DType::f32, 1).block_forward.bytes, 2 * 12 * row);
    EXPECT_DOUBLE_EQ(work.head.bytes, 2 * 40 * 64 * 2);
}

TEST(StepWork, RecomputingABlockAddsItsForwardPass) {
    const ModelConfig model = gpt2_style();
    const StepWork none = step_work(model, DType::bf16, 2);
    const StepWork block = step_work(model, DType::bf16, 2, Recompute::block);
    EXPECT_DOUBLE_EQ(block.block_backward.product_flops,
                     none.block_backward.product_flops + none.block_forward.product_flops);
    EXPECT_DOUBLE_EQ(block.block_backward.attention_flops, 1.4 * none.block_backward.attention_flops);
    const StepWork activations = step_work(model, DType::bf16, 2, Recompute::activations);
    EXPECT_EQ(activations.block_backward.product_flops, none.block_backward.product_flops);
    EXPECT_GT(activations.block_backward.bytes, none.block_backward.bytes);
}

}  // namespace
}  // namespace gradtile
