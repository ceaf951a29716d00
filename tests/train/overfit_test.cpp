// The simplest test for forward, backward and optimizer together: a model memorises one batch.
#include <cmath>

#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/optimizers/elementwise_optimizer.h>
#include <gradtile/train/optimizers/global_norm.h>

#include <support/overfit_batch.h>
#include <support/small_models.h>

namespace gradtile {
namespace {

using test::SmallModel;

struct Case {
    const char* name;
    SmallModel model;
    DType dtype;
    bool packed = false;  ///< each batch row is two documents
};

SmallModel gpt2_style(Recompute recompute) {
    return {{.layers = 2, .heads = 2, .width = 32, .context = 16, .vocabulary = 64},
            {.recompute = recompute}};
}
SmallModel llama_style() {
    return test::llama_style({.layers = 2, .width = 32, .context = 16, .vocabulary = 64});
}

SmallModel with_option(void (*change)(SmallModel&)) {
    SmallModel model = llama_style();
    change(model);
    return model;
}
void add_alibi(SmallModel& m) {
    m.config.positions = Positions::alibi;
}
void add_window(SmallModel& m) {
    m.config.window = 4;
    m.config.window_pattern = 2;
}
void add_softcap(SmallModel& m) {
    m.config.softcap = 5.0;
}
void add_sinks(SmallModel& m) {
    m.config.sinks = true;
}
void add_attention_dropout(SmallModel& m) {
    m.training.attention_dropout = 0.1;
}
void add_all(SmallModel& m) {
    for (const auto add : {add_alibi, add_window, add_softcap, add_sinks, add_attention_dropout}) add(m);
}

class Overfit : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Models, Overfit,
    ::testing::Values(Case{"gpt2_f32", gpt2_style(Recompute::none), DType::f32},
                      Case{"gpt2_bf16", gpt2_style(Recompute::none), DType::bf16},
                      Case{"gpt2_f32_recomputed", gpt2_style(Recompute::block), DType::f32},
                      Case{"gpt2_f32_packed", gpt2_style(Recompute::block), DType::f32, true},
                      Case{"llama_bf16_packed", llama_style(), DType::bf16, true},
                      Case{"attention_dropout_packed", with_option(add_attention_dropout), DType::f32, true},
                      Case{"all_options_packed", with_option(add_all), DType::f32, true},
                      Case{"llama_f32", llama_style(), DType::f32},
                      Case{"llama_bf16", llama_style(), DType::bf16},
                      Case{"alibi", with_option(add_alibi), DType::f32},
                      Case{"window", with_option(add_window), DType::f32},
                      Case{"softcap", with_option(add_softcap), DType::f32},
                      Case{"sinks", with_option(add_sinks), DType::f32},
                      Case{"attention_dropout", with_option(add_attention_dropout), DType::f32},
                      Case{"all_options_f32", with_option(add_all), DType::f32},
                      Case{"all_options_bf16", with_option(add_all), DType::bf16}),
    [](const auto& info) { return info.param.name; });

/// Targets are random, so the model can only memorise the batch. The loss starts at ln V, the entropy of a
/// uniform guess, and must fall to 1/100 of ln V.
TEST_P(Overfit, MemorisesOneBatch) {
    const Context ctx(Device::cpu(), 2);
    const ModelConfig& config = GetParam().model.config;
    ParameterStore parameters;
    const Transformer model(config, parameters, GetParam().model.training);
    parameters.allocate(ctx, GetParam().dtype);
    parameters.initialize(ctx, Seed{1});
    ElementwiseOptimizer optimizer(ctx, parameters, AdamW{.beta2 = 0.99});

    const test::OverfitBatch batch(ctx);
    ForwardOptions options;
    if (GetParam().packed) {
        std::vector<std::int32_t> offsets, positions;
        for (std::int32_t i = 0; i <= 4 * 16; i += 8) offsets.push_back(i);
        for (std::int32_t i = 0; i < 4 * 16; ++i) positions.push_back(i % 8);
        options.documents = {.offsets = from_host(ctx, offsets, {std::ssize(offsets)}),
                             .positions = from_host(ctx, positions, {4, 16})};
    }

    const double uniform = std::log(static_cast<double>(config.vocabulary));
    double first = 0.0, loss = 0.0;
    for (int step = 1; step <= 150; ++step) {
        parameters.reset_gradients();
        Transformer::Saved saved;
        options.dropout = DropoutKey::from_step(1, step);
        const Tensor result = model.forward(ctx, batch.tokens, batch.targets, saved, options);
        model.backward(ctx, saved);
        const Clip clip = clip_global_norm(ctx, parameters.gradients(), {.max_norm = 1.0});
        optimizer.step(ctx, 3e-3, {.gradient_scale = clip.scale});
        loss = item(ctx, result);
        if (step == 1) first = loss;
    }
    EXPECT_NEAR(first, uniform, 0.05 * uniform);
    EXPECT_LT(loss, 0.01 * uniform);
}

}  // namespace
}  // namespace gradtile
