// Parts that a model may have: at first they change nothing, or what is said, and then they reach what they
// should.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model_fixture.h"

namespace gradtile {
namespace {

using test::ModelFixture;
using test::tiny_gpt2;

/// Copies the parameters that both models have.
void copy_common_parameters(const ModelFixture& to, const ModelFixture& from) {
    for (const Parameter& parameter : from.parameters.parameters())
        copy(to.ctx, to.parameters.find(parameter.name()).value(), parameter.value());
}

/// With the factors that it starts with, a sum of the stream and the first input is the stream.
TEST(ModelParts, InitialLambdasChangeNothing) {
    ModelConfig mixed = tiny_gpt2();
    mixed.x0_lambdas = true;
    ModelFixture with(mixed), without(tiny_gpt2());
    copy_common_parameters(with, without);
    for (const TransformerBlock& block : with.model.blocks) {
        ASSERT_EQ(block.mix.sum->factors.size(), 2u);
        EXPECT_EQ(block.mix.sum->factors[0].init().value, 1.0);
        EXPECT_EQ(block.mix.sum->factors[1].init().value, 0.0);
        for (const Parameter& factor : block.mix.sum->factors)
            fill(with.ctx, factor.value(), factor.init().value);
    }
    EXPECT_EQ(with.loss({}), without.loss({}));
    fill(with.ctx, with.model.blocks[1].mix.sum->factors[1].value(), 0.5);
    EXPECT_NE(with.loss({}), without.loss({}));
}

/// With zeros for the gates' weights a gate is exactly a half, which doubled projections make up for.
TEST(ModelParts, AnInitialAttentionGateHalvesAttention) {
    ModelConfig gated = tiny_gpt2();
    gated.attention_gate = true;
    ModelFixture with(gated), without(tiny_gpt2());
    copy_common_parameters(with, without);
    for (const TransformerBlock& block : with.model.blocks) {
        fill(with.ctx, block.attn.gate->linear.weight.value(), 0.0);
        axpy(with.ctx, block.attn.proj.weight.value(), 1.0, block.attn.proj.weight.value());
    }
    EXPECT_EQ(with.loss({}), without.loss({}));
    fill(with.ctx, with.model.blocks[1].attn.gate->linear.weight.value(), 0.5);
    EXPECT_NE(with.loss({}), without.loss({}));
}

/// Every other layer has one, the last one included. Rows of zeros change nothing; another row changes only
/// texts with its token.
TEST(ModelParts, ValueEmbeddingsBelongToTokens) {
    ModelConfig embedded = tiny_gpt2();
    embedded.layers = 3;
    ModelFixture without(embedded);
    embedded.value_embeddings = true;
    ModelFixture with(embedded);
    copy_common_parameters(with, without);
    std::vector<bool> exist;
    for (const TransformerBlock& block : with.model.blocks) {
        exist.push_back(block.attn.value_embedding.has_value());
        if (exist.back()) fill(with.ctx, block.attn.value_embedding->embedding.weight.value(), 0.0);
    }
    EXPECT_THAT(exist, ::testing::ElementsAre(true, false, true));
    EXPECT_EQ(with.loss({}), without.loss({}));
    const Tensor rows = with.model.blocks[2].attn.value_embedding->embedding.weight.value();
    for (std::int64_t i = 0; i < with.tokens.elements(); ++i)
        with.tokens.data<std::int32_t>()[i] = without.tokens.data<std::int32_t>()[i] %= 10;
    fill(with.ctx, rows.slice(0, 10, 1), 1.0);
    EXPECT_EQ(with.loss({}), without.loss({})) << "no text has the token 10";
    with.tokens.data<std::int32_t>()[0] = without.tokens.data<std::int32_t>()[0] = 10;
    EXPECT_NE(with.loss({}), without.loss({}));
}

}  // namespace
}  // namespace gradtile
