// Numbers that are computed from a ModelConfig, without a model: parameters, operations, windows.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/layers/transformer/transformer.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

/// The published checkpoints' parameter counts (Radford et al. 2019).
TEST(ModelConfig, CountsTheParametersOfGpt2WithoutAllocatingThem) {
    const auto gpt2 = [](std::int64_t layers, std::int64_t heads, std::int64_t width) {
        return parameter_count(
            {.layers = layers, .heads = heads, .width = width, .context = 1024, .vocabulary = 50257});
    };
    EXPECT_EQ(gpt2(12, 12, 768), 124439808);
    EXPECT_EQ(gpt2(24, 16, 1024), 354823168);
    EXPECT_EQ(gpt2(36, 20, 1280), 774030080);
}

TEST(ModelConfig, LayersHaveTheWindowsOfThePattern) {
    ModelConfig config{.layers = 6, .window = 5};
    const auto windows = [&](std::int64_t pattern) {
        config.window_pattern = pattern;
        std::vector<std::int64_t> result;
        for (std::int64_t layer = 0; layer < config.layers; ++layer)
            result.push_back(config.window_of(layer));
        return result;
    };
    EXPECT_THAT(windows(0), ::testing::ElementsAre(5, 5, 5, 5, 5, 5));
    EXPECT_THAT(windows(2), ::testing::ElementsAre(5, 0, 5, 0, 5, 0));
    EXPECT_THAT(windows(6), ::testing::ElementsAre(5, 5, 5, 5, 5, 0));
}

/// Compares with counting: token t sees min(t + 1, window) keys.
TEST(ModelConfig, CountsTheVisibleKeysOfWindows) {
    for (const std::int64_t window : {0, 1, 4, 9, 20}) {
        double seen = 0;
        for (std::int64_t t = 0; t < 9; ++t)
            seen += static_cast<double>(window == 0 ? t + 1 : std::min(t + 1, window));
        EXPECT_DOUBLE_EQ(mean_visible_keys({.layers = 3, .window = window}, 9), seen / 9);
    }
    EXPECT_DOUBLE_EQ(mean_visible_keys({.layers = 2, .window = 1, .window_pattern = 2}, 9), (1.0 + 5.0) / 2);
}

/// Keys have an offset in the layers that see the whole context; in all layers if none does.
TEST(ModelConfig, KeyOffsetsNeedUnrotatedColumns) {
    ModelConfig config{.layers = 3,
                       .heads = 2,
                       .width = 32,
                       .positions = Positions::rope,
                       .rotary_width = 8,
                       .key_offset = true};
    const auto layers = [&] {
        validate(config);
        std::vector<bool> list;
        for (std::int64_t layer = 0; layer < config.layers; ++layer)
            list.push_back(config.offsets_keys(layer));
        return list;
    };
    EXPECT_THAT(layers(), ::testing::Each(true));
    config.window = 2;
    EXPECT_THAT(layers(), ::testing::Each(true));
    config.window_pattern = 4;  // no fourth layer
    EXPECT_THAT(layers(), ::testing::Each(true));
    config.window_pattern = 2;
    EXPECT_THAT(layers(), ::testing::ElementsAre(false, true, false));
    const auto refusal = [](const ModelConfig& refused) {
        return test::message_of([&] { validate(refused); });
    };
    ModelConfig refused = config;
    refused.rotary_width = 0;
    EXPECT_THAT(refusal(refused), ::testing::HasSubstr("key-offset: requires positions rope"));
    refused.rotary_width = 16;
    EXPECT_THAT(refusal(refused), ::testing::HasSubstr("below the head width 16"));
    refused.rope_scaling.kind = RopeKind::half_truncated;
    EXPECT_EQ(refusal(refused), "no error");
    refused.window_pattern = 0;
    refused.window_rope_base = 100;  // windows rotate all columns, and all layers have one
    EXPECT_THAT(refusal(refused), ::testing::HasSubstr("key-offset: requires positions rope"));
    refused = config;
    refused.positions = Positions::learned;
    EXPECT_THAT(refusal(refused), ::testing::HasSubstr("key-offset: requires positions rope"));
}

TEST(ModelConfig, CountsTheFlopsOfEachMatrixOnce) {
    // One head with width 2, hidden 8, vocabulary 3: 2*6 + 2*2 + 2*16 + 2*3 = 54 weights. Tokens see 2 keys
    // on average.
    ModelConfig config{.layers = 1, .heads = 1, .width = 2, .context = 3, .vocabulary = 3};
    EXPECT_DOUBLE_EQ(flops_per_token(config, 3), 6 * 54 + 12 * 2 * 2);
    // Each gate of a head reads both columns. A look-up of an embedding costs nothing.
    config.attention_gate = config.value_embeddings = true;
    EXPECT_DOUBLE_EQ(flops_per_token(config, 3), 6 * 58 + 12 * 2 * 2);
}

}  // namespace
}  // namespace gradtile
