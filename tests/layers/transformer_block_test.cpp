#include <gradtile/layers/transformer/transformer_block.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gradcheck.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

ModelConfig block_config(BlockKind kind) {
    return {.layers = 1, .heads = 2, .width = 8, .context = 6, .block = kind};
}
constexpr BlockKind block_kinds[] = {BlockKind::pre_norm, BlockKind::output_norm, BlockKind::sandwich_norm,
                                     BlockKind::parallel};

struct BlockFixture {
    Context ctx{Device::cpu(), 2};
    ParameterStore parameters;
    TransformerBlock block;
    Tensor x, dy;
    TrainingPass pass{.dropout = DropoutKey::from_step(1, 2, 3)};

    explicit BlockFixture(Recompute recompute, BlockKind kind = BlockKind::pre_norm)
        : block(parameters, "h.0", block_config(kind), 0, {.dropout = 0.3, .recompute = recompute}) {
        parameters.allocate(ctx, DType::f64);
        copy(ctx, parameters.values(), randn(ctx, parameters.values().shape(), DType::f64, Seed{5}));
        x = randn(ctx, {2, 6, 8}, DType::f64, Seed{3});
        dy = randn(ctx, x.shape(), DType::f64, Seed{4});
    }
    // The block with a fixed pass, so that it has a layer's signature. backward overwrites dy, so it
    // gets a copy.
    using Saved = TransformerBlock::Saved;
    Tensor forward(const Context& c, const Tensor& input, Saved& saved) const {
        return block.forward(c, {input}, pass, saved).sum(c);
    }
    Tensor backward(const Context& c, const Tensor& grad, const Saved& saved) const {
        return block.backward(c, cast(c, grad, DType::f64), saved).dy;
    }
    Tensor run() const {
        Saved saved;
        forward(ctx, x, saved);
        return backward(ctx, dy, saved);
    }
};

TEST(TransformerBlock, GradientsEqualFiniteDifferences) {
    for (const BlockKind kind : block_kinds)
        for (const Recompute recompute : {Recompute::none, Recompute::activations, Recompute::block}) {
            BlockFixture f(recompute, kind);
            const auto report = gradient_check_layer(f.ctx, f, f.x, f.parameters.parameters());
            EXPECT_TRUE(report.ok()) << name_of(kind) << ' ' << report;
        }
}

TEST(TransformerBlock, RecomputingGivesTheSameBits) {
    for (const BlockKind kind : block_kinds) {
        BlockFixture kept(Recompute::none, kind);
        const auto dx = to_host(kept.ctx, kept.run());
        for (const Recompute recompute : {Recompute::activations, Recompute::block}) {
            SCOPED_TRACE(concat(name_of(kind), ", ", name_of(recompute)));
            BlockFixture again(recompute, kind);
            EXPECT_EQ(to_host(again.ctx, again.run()), dx);
            EXPECT_EQ(to_host(again.ctx, again.parameters.gradients()),
                      to_host(kept.ctx, kept.parameters.gradients()));
        }
    }
}

/// Saved values in addition to the caller's input: q, k, v, o, norm_2's input, and the MLP's hidden values.
TEST(TransformerBlock, RecomputingActivationsSavesOnlyExpensiveValues) {
    BlockFixture f(Recompute::activations);
    const auto arena = std::make_shared<Arena>(Device::cpu(), std::size_t{1} << 20);
    TransformerBlock::Saved saved;
    f.block.forward(f.ctx.with_allocator(arena), {f.x}, f.pass, saved);
    const auto rounded = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
    const std::int64_t rows = 2 * 6, width = 8, heads = 2, value = size_of(DType::f64);
    std::int64_t expected = 0;
    for (const std::int64_t columns : {3 * width, width, width, 4 * width})
        expected += rounded(rows * columns * value);
    // LSE and its remainder, and the statistics of two norms.
    expected += 2 * rounded(rows * heads * value) + 4 * rounded(rows * value);
    EXPECT_EQ(arena->bytes_in_use(), static_cast<std::size_t>(expected));
}

TEST(TransformerBlock, RecomputingBlocksSavesOnlyTheInput) {
    BlockFixture f(Recompute::block);
    const auto arena = std::make_shared<Arena>(Device::cpu(), std::size_t{1} << 20);
    TransformerBlock::Saved saved;
    f.block.forward(f.ctx.with_allocator(arena), {f.x}, f.pass, saved);
    EXPECT_EQ(arena->bytes_in_use(), 0u);
    EXPECT_EQ(saved.input.raw_data(), f.x.raw_data());
}

/// The sum is computed again from the streams, which exist anyway.
TEST(TransformerBlock, RecomputingBlocksSavesNothingOfASumOfStreams) {
    const Context ctx(Device::cpu(), 2);
    ModelConfig config = block_config(BlockKind::pre_norm);
    config.x0_lambdas = true;
    ParameterStore parameters;
    const TransformerBlock block(parameters, "h.0", config, 0, {.recompute = Recompute::block});
    parameters.allocate(ctx, DType::f64);
    const Tensor x = randn(ctx, {2, 6, 8}, DType::f64, Seed{3});
    const auto arena = std::make_shared<Arena>(Device::cpu(), std::size_t{1} << 20);
    TransformerBlock::Saved saved;
    block.forward(ctx.with_allocator(arena), {x}, TrainingPass{}, saved, x);
    EXPECT_EQ(arena->bytes_in_use(), 0u);
}

TEST(TransformerBlock, BackwardUpdatesTheStreamsGradientInPlace) {
    for (const BlockKind kind : block_kinds) {
        BlockFixture f(Recompute::none, kind);
        TransformerBlock::Saved saved;
        f.block.forward(f.ctx, {f.x}, f.pass, saved);
        EXPECT_EQ(f.block.backward(f.ctx, f.dy, saved).dy.raw_data(), f.dy.raw_data());
    }
}

void expect_every_gradient_announced(BlockKind kind) {
    BlockFixture f(Recompute::none, kind);
    TransformerBlock::Saved saved;
    f.block.forward(f.ctx, {f.x}, f.pass, saved);
    std::vector<std::string> completed;
    std::vector<std::vector<double>> at_completion;
    const auto note = [&](const Parameter& parameter) {
        completed.push_back(parameter.name());
        at_completion.push_back(to_host(f.ctx, parameter.grad()));
    };
    f.block.backward(f.ctx, f.dy, saved, {.gradient_complete = note});
    std::vector<std::string> declared;
    for (const Parameter& parameter : f.parameters.parameters()) declared.push_back(parameter.name());
    EXPECT_THAT(completed, ::testing::UnorderedElementsAreArray(declared));
    for (std::size_t i = 0; i < completed.size(); ++i)
        EXPECT_EQ(at_completion[i], to_host(f.ctx, f.parameters.find(completed[i]).grad())) << completed[i];
}

TEST(TransformerBlock, EveryGradientIsAnnouncedOnceWhenComplete) {
    for (const BlockKind kind : block_kinds) expect_every_gradient_announced(kind);
}

TEST(TransformerBlock, HasTheNormsOfItsKind) {
    const auto norms = [](BlockKind kind) {
        const BlockFixture f(Recompute::none, kind);
        std::vector<std::string> names;
        for (const Parameter& parameter : f.parameters.parameters())
            if (parameter.name().starts_with("h.0.ln_") && parameter.name().ends_with(".weight"))
                names.push_back(parameter.name().substr(4));
        return names;
    };
    using testing::ElementsAre;
    EXPECT_THAT(norms(BlockKind::pre_norm), ElementsAre("ln_1.weight", "ln_2.weight"));
    EXPECT_THAT(norms(BlockKind::parallel), ElementsAre("ln_1.weight", "ln_2.weight"));
    EXPECT_THAT(norms(BlockKind::output_norm), ElementsAre("ln_post_1.weight", "ln_post_2.weight"));
    EXPECT_THAT(norms(BlockKind::sandwich_norm),
                ElementsAre("ln_1.weight", "ln_post_1.weight", "ln_2.weight", "ln_post_2.weight"));
}

TEST(TransformerBlock, BackwardAnnouncesAttentionOnce) {
    for (const Recompute recompute : {Recompute::none, Recompute::block}) {
        BlockFixture f(recompute);
        TransformerBlock::Saved saved;
        int times = 0;
        std::vector<std::string> complete_before;
        f.block.forward(f.ctx, {f.x}, f.pass, saved);
        f.block.backward(f.ctx, f.dy, saved,
                         {.gradient_complete =
                              [&](const Parameter& parameter) {
                                  if (times == 0) complete_before.push_back(parameter.name());
                              },
                          .before_attention = [&] { ++times; }});
        EXPECT_EQ(times, 1);
        EXPECT_THAT(complete_before, ::testing::Contains(::testing::HasSubstr("mlp")));
        EXPECT_THAT(complete_before, ::testing::Not(::testing::Contains(::testing::HasSubstr("qkv"))));
    }
}

}  // namespace
}  // namespace gradtile
