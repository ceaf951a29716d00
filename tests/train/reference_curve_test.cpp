// Compares 200 training steps of a small GPT-2 style model with PyTorch. This file repeats the formulas for
// weights and tokens from tests/reference/make_reference_curve.py.
#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/optimizers/elementwise_optimizer.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/schedule.h>

namespace gradtile {
namespace {

struct ReferenceLoss {
    double single, twice;  ///< PyTorch's float32 and float64 losses
};
constexpr ReferenceLoss reference_curve[] = {
#include <reference/reference_curve.inc>
};

constexpr std::int64_t batch_size = 8, curve_steps = std::size(reference_curve);
const ModelConfig config{.layers = 2, .heads = 4, .width = 32, .context = 16, .vocabulary = 37};

/// MurmurHash3's finaliser.
constexpr std::uint32_t mix(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
}

/// Matrix elements are multiples of 2^-27 in [-1/16, 1/16), which float32 represents exactly. Vectors keep
/// their initial values, which are ones or zeros.
void set_reference_weights(const Context& ctx, const ParameterStore& parameters) {
    std::uint32_t index = 0;
    for (const Parameter& parameter : parameters.parameters()) {
        if (parameter.shape().rank() == 2) {
            std::vector<double> values(static_cast<std::size_t>(parameter.shape().elements()));
            for (std::size_t i = 0; i < values.size(); ++i) {
                const auto word = mix(static_cast<std::uint32_t>(i) + index * 0x10001u);
                values[i] = std::ldexp(static_cast<double>(word >> 8) - 0x1p23, -23 - 4);
            }
            copy(ctx, parameter.value(), from_host(ctx, values, parameter.shape(), DType::f64));
        }
        ++index;
    }
}

struct CurveBatch {
    Tensor tokens, targets;
};

/// Token t+1 is 3 * token t + 1 (mod V), except for one token in four, which a hash determines.
CurveBatch reference_batch(const Context& ctx, std::int64_t step) {
    std::vector<std::int32_t> tokens, targets;
    for (std::int64_t b = 0; b < batch_size; ++b) {
        std::int64_t token = 0;
        for (std::int64_t t = 0; t <= config.context; ++t) {
            const std::uint32_t word = mix(static_cast<std::uint32_t>(step * 65536 + b * 256 + t + 0x7777));
            const bool follows = t > 0 && word % 4 != 0;
            token = (follows ? 3 * token + 1 : static_cast<std::int64_t>(word >> 8)) % config.vocabulary;
            if (t < config.context) tokens.push_back(static_cast<std::int32_t>(token));
            if (t > 0) targets.push_back(static_cast<std::int32_t>(token));
        }
    }
    const Shape shape{batch_size, config.context};
    return {from_host(ctx, tokens, shape), from_host(ctx, targets, shape)};
}

std::vector<double> loss_curve(DType dtype) {
    const Context ctx(Device::cpu(), 2);
    ParameterStore parameters;
    const Transformer model(config, parameters);
    parameters.allocate(ctx, dtype);
    parameters.initialize(ctx, Seed{0});
    set_reference_weights(ctx, parameters);
    ElementwiseOptimizer optimizer(ctx, parameters,
                                   AdamW{.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1});
    const Schedule schedule{
        .kind = ScheduleKind::cosine, .lr = 1e-3, .min_lr = 1e-4, .warmup = 20, .horizon = curve_steps};

    std::vector<double> losses;
    for (std::int64_t step = 1; step <= curve_steps; ++step) {
        const CurveBatch batch = reference_batch(ctx, step);
        parameters.reset_gradients();
        Transformer::Saved saved;
        const Tensor loss = model.forward(ctx, batch.tokens, batch.targets, saved);
        model.backward(ctx, saved);
        const Clip clip = clip_global_norm(ctx, parameters.gradients(), {.max_norm = 1.0});
        optimizer.step(ctx, schedule(step), {.gradient_scale = clip.scale});
        losses.push_back(item(ctx, loss));
    }
    return losses;
}

TEST(ReferenceCurve, Float32TrainingFollowsPyTorch) {
    const auto losses = loss_curve(DType::f32);
    for (std::size_t i = 0; i < losses.size(); ++i)
        ASSERT_NEAR(losses[i], reference_curve[i].single, 1e-5 * reference_curve[i].single)
            << "step " << i + 1;
}

/// PyTorch clips by max_norm / (norm + 1e-6). The gradient differs by 1e-6 of its value, and AdamW's
/// normalisation nearly cancels this difference. All other operations agree to float64 rounding.
TEST(ReferenceCurve, Float64TrainingFollowsPyTorch) {
    const auto losses = loss_curve(DType::f64);
    for (std::size_t i = 0; i < losses.size(); ++i)
        ASSERT_NEAR(losses[i], reference_curve[i].twice, 1e-6 * reference_curve[i].twice) << "step " << i + 1;
}

}  // namespace
}  // namespace gradtile
