#include <gradtile/layers/transformer.h>

#include <map>

#include <tests/support/parameter_gradients.h>

namespace gradtile {
namespace {

using testing::expect_parameter_gradients;

ModelConfig tiny_gpt2() {
    return {.layers = 2, .heads = 2, .width = 8, .context = 7, .vocabulary = 11};
}
ModelConfig tiny_llama() {
    return {.layers = 2,
            .heads = 4,
            .kv_heads = 2,
            .width = 16,
            .hidden = 12,
            .context = 7,
            .vocabulary = 11,
            .norm = Norm::rms,
            .activation = Activation::swiglu,
            .positions = Positions::rope,
            .bias = false,
            .tied_head = false,
            .qk_norm = true};
}

/// Tokens from a small congruential generator, some targets ignored.
Tensor generated_tokens(const Context& ctx, const Shape& shape, std::int64_t vocabulary, std::uint32_t state) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.elements()));
    for (std::int32_t& token : tokens) {
        state = 1664525u * state + 1013904223u;
        token = static_cast<std::int32_t>((state >> 16) % static_cast<std::uint32_t>(vocabulary));
    }
    return from_host(ctx, tokens, shape);
}
Tensor with_ignored(const Tensor& targets) {
    for (std::int64_t i = 0; i < targets.elements(); i += 5) targets.data<std::int32_t>()[i] = -1;
    return targets;
}

/// A model with its parameters, drawn large enough that every gradient is felt.
struct Fixture {
    Context ctx;
    ParameterStore parameters;
    Transformer model;
    Tensor tokens, targets;

    explicit Fixture(const ModelConfig& config, DType dtype = DType::f64, int threads = 2,
                     std::int64_t batch = 3, std::int64_t length = 6)
        : ctx(Device::cpu(), threads), model(config, parameters) {
        parameters.allocate(ctx, dtype);
        parameters.initialize(ctx, Seed{7});
        for (const Parameter& parameter : parameters.parameters())
            axpy(ctx, parameter.value(), 1.0,
                 cast(ctx, scaled_noise(parameter.shape(), parameter.offset()), dtype));
        tokens = generated_tokens(ctx, {batch, length}, config.vocabulary, 1);
        targets = with_ignored(generated_tokens(ctx, {batch, length}, config.vocabulary, 2));
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
        parameters.zero_gradients(ctx);
        gradients(options);
        return to_host(ctx, parameters.gradients());
    }
};

class TransformerStyles : public ::testing::TestWithParam<ModelConfig> {};
INSTANTIATE_TEST_SUITE_P(Both, TransformerStyles, ::testing::Values(tiny_gpt2(), tiny_llama()),
                         [](const auto& info) { return info.index == 0 ? "gpt2" : "llama"; });

TEST_P(TransformerStyles, GradientsEqualFiniteDifferences) {
    Fixture f(GetParam());
    expect_parameter_gradients(
        f.ctx, f.parameters, [&] { return f.loss({}); }, [&] { f.gradients({}); });
}

TEST_P(TransformerStyles, GradientsWithDropoutEqualFiniteDifferencesOfTheSameMasks) {
    ModelConfig config = GetParam();
    config.dropout = 0.25;
    Fixture f(config);
    const ForwardOptions options{.dropout = DropoutKey::of_step(3, 1, 0)};
    EXPECT_NE(f.loss(options), f.loss({}));
    expect_parameter_gradients(
        f.ctx, f.parameters, [&] { return f.loss(options); }, [&] { f.gradients(options); });
}

}  // namespace
}  // namespace gradtile
