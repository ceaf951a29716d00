#pragma once
/// Small models with random parameters and tokens.
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>

#include <support/small_models.h>

namespace gradtile::test {

inline ModelConfig tiny_gpt2() {
    return {.layers = 2, .heads = 2, .width = 8, .context = 7, .vocabulary = 11};
}

/// Pseudo-random tokens.
inline Tensor generated_tokens(const Context& ctx, const Shape& shape, std::int64_t vocabulary,
                               std::uint32_t state) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.elements()));
    for (std::int32_t& token : tokens) {
        state = 1664525u * state + 1013904223u;
        token = static_cast<std::int32_t>((state >> 16) % static_cast<std::uint32_t>(vocabulary));
    }
    return from_host(ctx, tokens, shape);
}
/// Sets every fifth target to "ignored".
inline Tensor with_ignored(const Tensor& targets) {
    for (std::int64_t i = 0; i < targets.elements(); i += 5) targets.data<std::int32_t>()[i] = -1;
    return targets;
}

/// A model whose random parameters are large enough that no gradient is negligible.
struct ModelFixture {
    Context ctx;
    ParameterStore parameters;
    Transformer model;
    Tensor tokens, targets;

    explicit ModelFixture(const SmallModel& small, DType dtype = DType::f64, int threads = 2,
                          std::int64_t batch = 3, std::int64_t length = 6)
        : ctx(Device::cpu(), threads), model(small.config, parameters, small.training, small.adapters) {
        parameters.allocate(ctx, dtype);
        parameters.initialize(ctx, Seed{7});
        for (const Parameter& parameter : parameters.parameters())
            axpy(ctx, parameter.value(), 1.0,
                 cast(ctx, scaled_noise(parameter.shape(), parameter.offset()), dtype));
        tokens = generated_tokens(ctx, {batch, length}, small.config.vocabulary, 1);
        targets = with_ignored(generated_tokens(ctx, {batch, length}, small.config.vocabulary, 2));
    }
    Tensor scaled_noise(const Shape& shape, std::int64_t offset) const {
        const Tensor noise = zeros(ctx, shape, DType::f64);
        axpy(ctx, noise, 0.3, randn(ctx, shape, DType::f64, Seed{1000 + static_cast<std::uint64_t>(offset)}));
        return noise;
    }
    double loss(const ForwardOptions& options) {
        Transformer::Saved saved;
        return item(ctx, model.forward(ctx, tokens, targets, saved, options));
    }
    void gradients(const ForwardOptions& options) {
        Transformer::Saved saved;
        model.forward(ctx, tokens, targets, saved, options);
        model.backward(ctx, saved);
    }
    std::vector<double> fresh_gradients(const ForwardOptions& options) {
        parameters.reset_gradients();
        gradients(options);
        return to_host(ctx, parameters.gradients());
    }
};

}  // namespace gradtile::test
