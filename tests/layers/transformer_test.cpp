#include <gradtile/layers/transformer/transformer.h>

#include <algorithm>
#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/compare.h>
#include <gradtile/core/gradcheck.h>
#include <gradtile/core/tensor_ops.h>

#include "model_fixture.h"

namespace gradtile {
namespace {

using test::ModelFixture;
using test::SmallModel;
using test::tiny_gpt2;

ModelConfig tiny_llama() {
    return test::llama_style({.layers = 2, .width = 16, .hidden = 12, .context = 7, .vocabulary = 11});
}
SmallModel tiny_options() {
    return test::with_attention_options(tiny_llama());
}

/// A contiguous copy of each sequence's first `length` tokens.
Tensor first_tokens(const Context& ctx, const Tensor& tokens, std::int64_t length) {
    const Tensor prefix = empty(ctx, {tokens.size(0), length}, DType::i32);
    copy(ctx, prefix, tokens.slice(1, 0, length));
    return prefix;
}

SmallModel tiny_lora() {
    return {tiny_gpt2(), {}, {.rank = 3, .alpha = 2.0}};
}

SmallModel tiny_lora_with_gates() {
    ModelConfig config = tiny_gpt2();
    config.layers = 3;
    config.x0_lambdas = config.attention_gate = config.value_embeddings = true;
    return {config, {}, {.rank = 2}};
}

class TransformerStyles : public ::testing::TestWithParam<SmallModel> {};
std::vector<test::FamilyModel> tiny_families() {
    return test::family_models({.layers = 2, .width = 16, .hidden = 12, .context = 7, .vocabulary = 11});
}
std::vector<SmallModel> all_styles() {
    std::vector<SmallModel> styles{tiny_gpt2(), tiny_llama(), tiny_options(), tiny_lora(),
                                   tiny_lora_with_gates()};
    for (const test::FamilyModel& family : tiny_families()) styles.emplace_back(family.config);
    styles.back().adapters = {.rank = 2};
    return styles;
}
std::string style_name(const ::testing::TestParamInfo<SmallModel>& info) {
    static const std::vector<std::string> first{"gpt2", "llama", "options", "lora", "lora_gates"};
    return info.index < first.size() ? first[info.index] : tiny_families()[info.index - first.size()].name;
}
INSTANTIATE_TEST_SUITE_P(All, TransformerStyles, ::testing::ValuesIn(all_styles()), style_name);

GradientReport check_gradients(ModelFixture& f, const ForwardOptions& options) {
    using Tensors = Differentiable::Tensors;
    const Differentiable training_step{
        [&](const Context& ctx, const Tensors&) {
            Transformer::Saved saved;
            return Tensors{f.model.forward(ctx, f.tokens, f.targets, saved, options)};
        },
        [&](const Context& ctx, const Tensors&, const Tensors& d_loss) {
            ForwardOptions scaled = options;
            scaled.gradient_scale = item(ctx, d_loss[0]);
            f.gradients(scaled);
            return Tensors{};
        }};
    // Sinks and their gradients are float32, so the float64 bounds do not apply to them.
    std::vector<Parameter> checked;
    for (const Parameter& parameter : f.parameters.parameters())
        if (!parameter.name().ends_with(".sinks")) checked.push_back(parameter);
    return gradient_check(f.ctx, training_step, {}, checked, {.elements = 24});
}

TEST_P(TransformerStyles, GradientsEqualFiniteDifferences) {
    ModelFixture f(GetParam());
    const GradientReport report = check_gradients(f, {});
    EXPECT_TRUE(report.ok()) << report;
}

TEST_P(TransformerStyles, GradientsWithDropoutEqualFiniteDifferencesOfTheSameMasks) {
    SmallModel small = GetParam();
    small.training.dropout = 0.25;
    ModelFixture f(small);
    const ForwardOptions options{.dropout = DropoutKey::from_step(3, 1, 0)};
    EXPECT_NE(f.loss(options), f.loss({}));
    const GradientReport report = check_gradients(f, options);
    EXPECT_TRUE(report.ok()) << report;
}

/// Attention rounds sinks to float32. The finite-difference steps are powers of two, so that this rounding is
/// exact.
TEST(Transformer, GradientsOfSinksEqualFiniteDifferences) {
    ModelFixture f(tiny_options());
    const ForwardOptions options{.dropout = DropoutKey::from_step(3, 1, 0)};
    const Tensor &values = f.model.blocks[0].attn.sinks.value(),
                 &others = f.model.blocks[1].attn.sinks.value();
    for (const Tensor& sinks : {values, others}) fill(f.ctx, sinks, 0.5);
    f.fresh_gradients(options);
    for (const TransformerBlock& block : f.model.blocks) {
        const Parameter& sinks = block.attn.sinks;
        const std::vector<double> gradients = to_host(f.ctx, sinks.grad());
        for (std::int64_t h = 0; h < sinks.shape()[0]; ++h) {
            const auto slope = [&](double step) {
                double& value = sinks.value().data<double>()[h];
                value = 0.5 + step;
                const double above = f.loss(options);
                value = 0.5 - step;
                const double below = f.loss(options);
                value = 0.5;
                return (above - below) / (2 * step);
            };
            const double near = slope(0x1p-10), far = slope(0x1p-9), exact = (4 * near - far) / 3;
            EXPECT_GT(std::abs(exact), 1e-6) << "no gradient to check";
            // The bound adds the truncation error, the losses' roundings, and the roundings in a float32 sum.
            const double bound =
                std::abs(far - near) / 3 + 1e3 * 0x1p-53 / 0x1p-10 + 4 * 0x1p-24 * std::abs(exact);
            EXPECT_NEAR(gradients[static_cast<std::size_t>(h)], exact, bound) << sinks.name() << ' ' << h;
        }
    }
}

TEST(Transformer, EveryAttentionOptionChangesTheLoss) {
    const SmallModel all = tiny_options();
    ModelFixture with(all);
    const ForwardOptions options{.dropout = DropoutKey::from_step(3, 1, 0)};
    const double loss = with.loss(options);
    EXPECT_EQ(with.loss(options), loss);
    struct Without {
        const char* name;
        void (*change)(SmallModel&);
    };
    for (const Without& without :
         {Without{"window", [](SmallModel& m) { m.config.window = 0; }},
          Without{"window_pattern", [](SmallModel& m) { m.config.window_pattern = 0; }},
          Without{"softcap", [](SmallModel& m) { m.config.softcap = 0; }},
          Without{"attention_dropout", [](SmallModel& m) { m.training.attention_dropout = 0; }}}) {
        SmallModel small = all;
        without.change(small);
        ModelFixture f(small);
        EXPECT_NE(f.loss(options), loss) << without.name;
    }
    fill(with.ctx, with.model.blocks[0].attn.sinks.value(), 0.0);
    EXPECT_NE(with.loss(options), loss) << "sinks";
}

/// The masks belong to samples in the global batch, not to micro-batch rows.
TEST(Transformer, AttentionDropoutDependsOnTheSampleAndTheLayer) {
    SmallModel small = tiny_options();
    small.training.attention_dropout = 0.5;
    ModelFixture f(small, DType::f64, 2, 4);
    const DropoutKey key = DropoutKey::from_step(3, 1, 0);
    const auto outputs = [&](std::int64_t layer, const Tensor& x, const DropoutKey& k) {
        MultiHeadAttention::Saved saved;
        return to_host(f.ctx, f.model.blocks[static_cast<std::size_t>(layer)].attn.forward(
                                  f.ctx, x, TrainingPass{.dropout = k}, saved));
    };
    const Tensor x = randn(f.ctx, {4, 6, small.config.width}, DType::f64, Seed{5});
    const auto all = outputs(0, x, key);
    DropoutKey second_half = key;
    second_half.first_sample = 2;
    const auto half = outputs(0, x.slice(0, 2, 2), second_half);
    EXPECT_TRUE(std::equal(half.begin(), half.end(), all.begin() + std::ssize(all) / 2));
    EXPECT_NE(outputs(0, x, key.at(0)), outputs(0, x, key.at(1)));
    const MultiHeadAttention& first = f.model.blocks[0].attn;
    MultiHeadAttention moved = first;  // the same weights at another place
    moved.layer = 1;
    const auto dropped = [&](const MultiHeadAttention& attn) {
        MultiHeadAttention::Saved saved;
        return to_host(f.ctx, attn.forward(f.ctx, x, TrainingPass{.dropout = key}, saved));
    };
    EXPECT_EQ(dropped(first), all);
    EXPECT_NE(dropped(moved), all);
    EXPECT_EQ(outputs(0, x, {}), outputs(0, x, DropoutKey{}));
    EXPECT_NE(outputs(0, x, {}), all);
}

TEST_P(TransformerStyles, RecomputingGivesTheSameLossAndGradientBits) {
    SmallModel small = GetParam();
    small.config.width = 8 * small.config.heads;  // bfloat16 attention requires head_dim % 8 == 0
    small.training.dropout = 0.25;
    const ForwardOptions options{.dropout = DropoutKey::from_step(3, 1, 0)};
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        ModelFixture kept(small, dtype);
        const double loss = kept.loss(options);
        const auto gradients = kept.fresh_gradients(options);
        for (const Recompute level : {Recompute::activations, Recompute::block}) {
            SCOPED_TRACE(concat(dtype, ", recompute ", name_of(level)));
            small.training.recompute = level;
            ModelFixture recomputed(small, dtype);
            EXPECT_EQ(recomputed.loss(options), loss);
            EXPECT_EQ(recomputed.fresh_gradients(options), gradients);
        }
        small.training.recompute = Recompute::none;
    }
}

TEST_P(TransformerStyles, BitsDoNotDependOnTheNumberOfThreads) {
    SmallModel small = GetParam();
    small.config.width = 64;
    small.config.context = 70;
    small.training.dropout = 0.1;
    const ForwardOptions options{.dropout = DropoutKey::from_step(3, 1, 0)};
    for (const DType dtype : {DType::f32, DType::bf16}) {
        ModelFixture one(small, dtype, 1, 5, 70);
        const double loss = one.loss(options);
        const auto gradients = one.fresh_gradients(options);
        for (const int threads : {2, 3}) {
            ModelFixture more(small, dtype, threads, 5, 70);
            EXPECT_EQ(more.loss(options), loss) << dtype << ", " << threads << " threads";
            EXPECT_EQ(more.fresh_gradients(options), gradients) << dtype << ", " << threads << " threads";
        }
    }
}

TEST_P(TransformerStyles, TheGradientScaleScalesTheGradientsAndNotTheLoss) {
    ModelFixture f(GetParam());
    const auto gradients = f.fresh_gradients({});
    const auto quarter = f.fresh_gradients({.gradient_scale = 0.25});
    EXPECT_EQ(f.loss({}), f.loss({.gradient_scale = 0.25}));
    for (std::size_t i = 0; i < gradients.size(); ++i)
        EXPECT_EQ(0.25 * gradients[i], quarter[i]);  // a power of 2
}

/// The targets that are not ignored are distributed unevenly over the micro-batches.
TEST_P(TransformerStyles, MicroBatchesAccumulateToTheMeanOverAllTargets) {
    ModelFixture f(GetParam(), DType::f64, 2, 4);
    f.targets = test::generated_tokens(f.ctx, {4, 6}, f.model.config.vocabulary, 9);
    fill(f.ctx, f.targets.slice(0, 0, 1), -1.0);
    fill(f.ctx, f.targets.slice(0, 1, 1).slice(1, 0, 4), -1.0);
    const double loss = f.loss({});
    const auto full = f.fresh_gradients({});
    const Tensor tokens = f.tokens, targets = f.targets, count = zeros(f.ctx, {1}, DType::f64);
    fill(f.ctx, count, 14.0);
    f.parameters.reset_gradients();
    double sum_of_losses = 0.0;
    for (const std::int64_t first : {0, 2}) {
        f.tokens = tokens.slice(0, first, 2);
        f.targets = targets.slice(0, first, 2);
        sum_of_losses += f.loss({.target_count = count});
        f.parameters.reset_gradients();
    }
    EXPECT_NEAR(sum_of_losses, loss, 1e3 * 2.3e-16 * loss);
    for (const std::int64_t first : {0, 2}) {
        f.tokens = tokens.slice(0, first, 2);
        f.targets = targets.slice(0, first, 2);
        f.gradients({.target_count = count});
    }
    const auto halves = to_host(f.ctx, f.parameters.gradients());
    double largest = 0.0;
    for (const double g : full) largest = std::max(largest, std::abs(g));
    // Both results add the same (about 1,000) products in different orders. Sink gradients are rounded to
    // float32 before they are added: three roundings.
    for (const Parameter& parameter : f.parameters.parameters()) {
        const double roundings = parameter.name().ends_with(".sinks") ? 3 * 0x1p-24 : 1e3 * 2.3e-16;
        for (std::int64_t n = 0; n < parameter.shape().elements(); ++n) {
            const auto i = static_cast<std::size_t>(parameter.offset() + n);
            ASSERT_NEAR(full[i], halves[i], roundings * largest) << parameter.name();
        }
    }
}

TEST_P(TransformerStyles, EvaluationEqualsTheTrainingLossWithoutDropout) {
    SmallModel small = GetParam();
    small.training.dropout = 0.5;
    ModelFixture f(small);
    const auto result = to_host(f.ctx, f.model.evaluate(f.ctx, f.tokens, f.targets));
    ASSERT_EQ(result.size(), 2u);
    const std::vector<double> targets = to_host(f.ctx, f.targets);
    EXPECT_EQ(result[1],
              static_cast<double>(std::ranges::count_if(targets, [](double t) { return t >= 0; })));
    EXPECT_DOUBLE_EQ(result[0] / result[1], f.loss({}));
    EXPECT_THAT(to_host(f.ctx, f.parameters.gradients()), ::testing::Contains(::testing::Ne(0.0)));
    fill(f.ctx, f.parameters.gradients(), 0.0);
    f.model.evaluate(f.ctx, f.tokens, f.targets);
    EXPECT_THAT(to_host(f.ctx, f.parameters.gradients()), ::testing::Each(0.0));
}

TEST_P(TransformerStyles, LogitsOfTheLastTokenGiveItsLossAndDoNotDependOnLaterTokens) {
    ModelFixture f(GetParam());
    const std::int64_t length = 4, vocabulary = f.model.config.vocabulary;
    const Tensor prefix = first_tokens(f.ctx, f.tokens, length);
    const auto logits = to_host(f.ctx, f.model.logits(f.ctx, prefix));
    ASSERT_EQ(logits.size(), static_cast<std::size_t>(3 * vocabulary));

    // The whole sequence, with a loss only at position length-1. The later tokens must not change it.
    std::vector<std::int32_t> only_last(18, -1);
    double expected = 0.0;
    for (std::size_t b = 0; b < 3; ++b) {
        const std::int32_t target = static_cast<std::int32_t>(b) + 1;
        only_last[b * 6 + static_cast<std::size_t>(length) - 1] = target;
        double sum = 0.0;
        const double* row = logits.data() + b * static_cast<std::size_t>(vocabulary);
        for (std::int64_t v = 0; v < vocabulary; ++v) sum += std::exp(row[v]);
        expected += std::log(sum) - row[target];
    }
    const auto result =
        to_host(f.ctx, f.model.evaluate(f.ctx, f.tokens, from_host(f.ctx, only_last, {3, 6})));
    EXPECT_NEAR(result[0], expected, 1e3 * 2.3e-16 * std::abs(expected));
}

TEST_P(TransformerStyles, ResetGradientsDoNotAffectLaterGradients) {
    for (const DType dtype : {DType::f64, DType::f32}) {
        ModelFixture f(GetParam(), dtype);
        std::vector<std::vector<double>> results;
        for (const bool reset : {false, true}) {
            fill(f.ctx, f.parameters.gradients(), 0.0);
            if (reset) {
                for (const Parameter& parameter : f.parameters.parameters())
                    fill(f.ctx, parameter.grad(), std::nan(""));
                f.parameters.reset_gradients();
            }
            for (int micro_step = 0; micro_step < 2; ++micro_step) f.gradients({});
            results.push_back(to_host(f.ctx, f.parameters.gradients()));
        }
        EXPECT_EQ(results[0], results[1]) << dtype;
    }
}

TEST_P(TransformerStyles, EveryParameterIsAnnouncedOnceWithItsFinalGradient) {
    ModelFixture f(GetParam());
    f.parameters.reset_gradients();
    Transformer::Saved saved;
    f.model.forward(f.ctx, f.tokens, f.targets, saved);
    std::map<std::string, std::vector<double>> completed;
    const auto note = [&](const Parameter& parameter) {
        EXPECT_TRUE(completed.emplace(parameter.name(), to_host(f.ctx, parameter.grad())).second)
            << parameter.name() << " twice";
    };
    f.model.backward(f.ctx, saved, {.gradient_complete = note});
    EXPECT_EQ(completed.size(), f.parameters.parameters().size());
    for (const auto& [name, gradient] : completed)
        EXPECT_EQ(gradient, to_host(f.ctx, f.parameters.find(name).grad())) << name;
}

/// Each stored activation or gradient has a relative rounding error of at most 2^-8. A path through the model
/// has about twelve such roundings in each block and eight outside the blocks. In the worst case their errors
/// add up in a logit.
TEST_P(TransformerStyles, Bfloat16ErrorsAreWithinRoundingBounds) {
    SmallModel small = GetParam();
    small.config.width = 64;
    ModelFixture rounded(small, DType::bf16), exact(small, DType::f64);
    copy(exact.ctx, exact.parameters.values(), rounded.parameters.values());
    const double roundings = 12.0 * static_cast<double>(small.config.layers) + 8.0,
                 unit = std::ldexp(1.0, -8);

    double largest_logit = 0.0;
    for (const double logit : to_host(exact.ctx, exact.model.logits(exact.ctx, exact.tokens)))
        largest_logit = std::max(largest_logit, std::abs(logit));
    EXPECT_NEAR(rounded.loss({}), exact.loss({}), 2.0 * roundings * unit * largest_logit);

    rounded.fresh_gradients({});
    exact.fresh_gradients({});
    EXPECT_EQ(rounded.parameters.gradients().dtype(), DType::f32);
    // Backward has as many roundings as forward, so the bound is twice as large.
    const Comparison difference = compare(rounded.parameters.gradients(), exact.parameters.gradients());
    EXPECT_LT(difference.norm_error, 2.0 * roundings * unit) << difference;
}

TEST(Transformer, ATiedEmbeddingReceivesTheGradientsOfBothUses) {
    ModelConfig tied = tiny_gpt2(), own = tied;
    own.tied_head = false;
    ModelFixture one(tied), two(own);
    for (const Parameter& parameter : one.parameters.parameters())
        copy(two.ctx, two.parameters.find(parameter.name()).value(), parameter.value());
    copy(two.ctx, two.model.head.weight.value(), two.model.wte.weight.value());
    one.fresh_gradients({});
    two.fresh_gradients({});
    const auto sum = to_host(one.ctx, one.model.wte.weight.grad());
    const auto as_input = to_host(two.ctx, two.model.wte.weight.grad());
    const auto as_head = to_host(two.ctx, two.model.head.weight.grad());
    double largest = 0.0;
    for (const double g : sum) largest = std::max(largest, std::abs(g));
    for (std::size_t i = 0; i < sum.size(); ++i)
        EXPECT_NEAR(sum[i], as_input[i] + as_head[i], 64 * 2.3e-16 * largest);
    EXPECT_THAT(as_input, ::testing::Contains(::testing::Ne(0.0)));
    EXPECT_THAT(as_head, ::testing::Contains(::testing::Ne(0.0)));
}

TEST(Transformer, NamesItsParametersAsDocumented) {
    ParameterStore gpt2, llama, options;
    const Transformer a(tiny_gpt2(), gpt2), b(tiny_llama(), llama), c(tiny_options().config, options);
    const auto names = [](const ParameterStore& store) {
        std::vector<std::string> result;
        for (const Parameter& parameter : store.parameters())
            if (!parameter.name().starts_with("h.1.")) result.push_back(parameter.name());
        return result;
    };
    EXPECT_THAT(names(gpt2),
                ::testing::ElementsAre("wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias",
                                       "h.0.attn.qkv.weight", "h.0.attn.qkv.bias", "h.0.attn.proj.weight",
                                       "h.0.attn.proj.bias", "h.0.ln_2.weight", "h.0.ln_2.bias",
                                       "h.0.mlp.fc.weight", "h.0.mlp.fc.bias", "h.0.mlp.proj.weight",
                                       "h.0.mlp.proj.bias", "ln_f.weight", "ln_f.bias"));
    EXPECT_THAT(names(llama), ::testing::ElementsAre("wte.weight", "h.0.norm_1.weight", "h.0.attn.qkv.weight",
                                                     "h.0.attn.proj.weight", "h.0.attn.q_norm.weight",
                                                     "h.0.attn.k_norm.weight", "h.0.norm_2.weight",
                                                     "h.0.mlp.gate_up.weight", "h.0.mlp.down.weight",
                                                     "norm_f.weight", "head.weight"));
    EXPECT_THAT(names(options), ::testing::Contains("h.0.attn.sinks"));
    EXPECT_EQ(options.find("h.0.attn.sinks").shape(), (Shape{4}));
    EXPECT_FALSE(options.find("h.0.attn.sinks").decays());
}

TEST(Transformer, StartsWithGpt2sInitialisation) {
    ParameterStore parameters;
    const Transformer model(tiny_gpt2(), parameters);
    EXPECT_EQ(parameters.find("h.0.mlp.fc.weight").init().value, 0.02);
    EXPECT_EQ(parameters.find("h.1.mlp.proj.weight").init().value, 0.02 / 2.0);  // sqrt(2 * 2 layers)
    EXPECT_EQ(parameters.find("h.1.attn.proj.weight").init().value, 0.02 / 2.0);
    EXPECT_EQ(parameters.find("h.0.attn.qkv.bias").init().value, 0.0);
    EXPECT_EQ(parameters.find("ln_f.weight").init().value, 1.0);
}

/// With one key there is nothing to choose from: a window of 1 gives each token its own value.
TEST(Transformer, StartsWithAnEmbeddingOfTheChosenDeviation) {
    const Context ctx(Device::cpu(), 1);
    const auto embedding_with = [&](double deviation) {
        ParameterStore store;
        const Transformer model({.layers = 1, .heads = 2, .width = 16, .context = 7, .vocabulary = 11}, store,
                                {.embedding_std = deviation});
        store.allocate(ctx, DType::f64);
        store.initialize(ctx, Seed{1});
        return to_host(ctx, model.wte.weight.value());
    };
    const auto usual = embedding_with(0.02), wide = embedding_with(1.0);
    for (std::size_t i = 0; i < usual.size(); ++i) EXPECT_NEAR(wide[i], 50.0 * usual[i], 1e-12);
}

TEST(Transformer, AWindowOfOneSeesTheTokenItself) {
    ModelConfig config = tiny_gpt2();
    config.window = 1;
    ModelFixture f(config);
    const Tensor x = randn(f.ctx, {1, 6, config.width}, DType::f64, Seed{5});
    MultiHeadAttention::Saved saved;
    f.model.blocks[0].attn.forward(f.ctx, x, TrainingPass{}, saved);
    EXPECT_EQ(to_host(f.ctx, saved.attention.o), to_host(f.ctx, saved.attention.v));
}

TEST(Transformer, RefusesInvalidTokensInOneLine) {
    ModelFixture f(tiny_gpt2());
    Transformer::Saved saved;
    const Tensor long_one = zeros(f.ctx, {1, 8}, DType::i32);
    EXPECT_THROW(f.model.forward(f.ctx, long_one, long_one, saved), Error);
    EXPECT_THROW(f.model.forward(f.ctx, f.tokens.slice(1, 0, 3), f.targets, saved), Error);
    EXPECT_THROW(f.model.forward(f.ctx, f.tokens, f.targets, saved, {.max_window = -1}), Error);
    EXPECT_THROW(f.model.logits(f.ctx, zeros(f.ctx, {1, 0}, DType::i32)), Error);
    EXPECT_THROW(f.model.backward(f.ctx, Transformer::Saved{}), Error);
    const Tensor unknown = zeros(f.ctx, {1, 2}, DType::i32);
    fill(f.ctx, unknown, 11.0);
    EXPECT_THROW(f.model.evaluate(f.ctx, unknown, unknown), Error);
    ParameterStore parameters;
    EXPECT_THROW(Transformer({.vocabulary = 0}, parameters), Error);
}

}  // namespace
}  // namespace gradtile
