// Layers and models whose frozen matrices are quantized: they compute what the dequantized matrices compute.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gradcheck.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>

#include <support/cuda_test.h>
#include <support/small_models.h>

namespace gradtile {
namespace {

using test::SmallModel;

using Results = std::map<std::string, std::vector<double>>;

/// Sets the value of a parameter of either kind.
void set_value(const Context& ctx, const Parameter& parameter, const Tensor& value) {
    const Context host(Device::cpu(), 2);
    if (!parameter.is_quantized()) return copy(ctx, parameter.value(), to_device(ctx, value));
    const Tensor codes = empty(host, parameter.codes().shape(), DType::i32);
    quantize_weights(host, codes, value, parameter.format());
    copy(ctx, parameter.codes(), to_device(ctx, codes));
}

Seed seed_of(const std::string& name) {
    std::uint64_t seed = 1;
    for (const char c : name) seed = seed * 131 + static_cast<unsigned char>(c);
    return {seed};
}

/// The value in `plain` becomes the dequantized value of the parameter with the same name in `quantized`.
void draw_equal_values(const Context& ctx, const ParameterStore& quantized, const ParameterStore& plain) {
    const Context host(Device::cpu(), 2);
    for (const Parameter& parameter : quantized.parameters()) {
        const double mean = parameter.decays() ? 0.0 : 0.5;
        const Tensor drawn = zeros(host, parameter.shape(), DType::f32);
        fill_normal(host, drawn, mean, 0.4, seed_of(parameter.name()));
        set_value(ctx, parameter, drawn);
        copy(ctx, plain.find(parameter.name()).value(), parameter.dequantized(ctx));
    }
}

/// A linear layer with a frozen weight in this format.
struct FrozenLinear {
    ParameterStore frozen, adapters;
    Linear linear;

    FrozenLinear(const Context& ctx, WeightFormat format, DType dtype, bool has_adapter)
        : linear(frozen, "linear", 70, 50) {
        if (format != WeightFormat::same) frozen.quantize({&linear.weight, 1}, format);
        if (has_adapter) linear.add_adapter(adapters, {.rank = 3, .alpha = 4.5});
        frozen.allocate(ctx, dtype, {.gradients = false});
        adapters.allocate(ctx, dtype);
        for (const Parameter& parameter : adapters.parameters())
            fill_normal(ctx, parameter.value(), 0.0, 0.3, seed_of(parameter.name()));
    }
    Results run(const Context& ctx, DType dtype) {
        const Tensor x = randn(ctx, {3, 11, 70}, dtype, Seed{4}),
                     dy = randn(ctx, {3, 11, 50}, dtype, Seed{5});
        Linear::Saved saved;
        Results results;
        results["y"] = to_host(ctx, linear.forward(ctx, x, saved));
        EXPECT_EQ(saved.x.defined(), linear.adapter.has_value());
        adapters.reset_gradients();
        results["dx"] = to_host(ctx, linear.backward(ctx, dy, saved));
        results["gradients"] = to_host(ctx, adapters.gradients());
        // Without a backward pass, a stream and few rows may take another path.
        const Tensor few = randn(ctx, {1, 2, 70}, dtype, Seed{6});
        results["few rows"] = to_host(ctx, linear.forward(ctx, {few, {}, true}, saved));
        return results;
    }
};

void expect_layers_of_dequantized_weights(const Context& ctx) {
    for (const WeightFormat format : {WeightFormat::nf4, WeightFormat::int8})
        for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
            for (const bool has_adapter : {false, true}) {
                FrozenLinear quantized(ctx, format, dtype, has_adapter);
                FrozenLinear plain(ctx, WeightFormat::same, dtype, has_adapter);
                draw_equal_values(ctx, quantized.frozen, plain.frozen);
                EXPECT_TRUE(quantized.linear.weight.is_frozen());
                const std::vector<double> before = to_host(ctx, quantized.frozen.codes());
                EXPECT_EQ(quantized.run(ctx, dtype), plain.run(ctx, dtype))
                    << name_of(format) << ' ' << dtype << (has_adapter ? " with an adapter" : "");
                EXPECT_EQ(to_host(ctx, quantized.frozen.codes()), before);
            }
}

TEST(QuantizedLinear, ComputesTheBitsOfItsDequantizedWeight) {
    expect_layers_of_dequantized_weights(Context(Device::cpu(), 2));
}

TEST(QuantizedLinear, AdaptersPassTheGradientCheck) {
    const Context ctx(Device::cpu(), 2);
    for (const WeightFormat format : {WeightFormat::nf4, WeightFormat::int8}) {
        FrozenLinear layer(ctx, format, DType::f64, true);
        set_value(ctx, layer.linear.weight, randn(ctx, {50, 70}, DType::f32, Seed{1}));
        const Tensor x = randn(ctx, {2, 3, 70}, DType::f64, Seed{2});
        EXPECT_TRUE(gradient_check_layer(ctx, layer.linear, x, layer.adapters.parameters()).ok())
            << name_of(format);
    }
}

// ---- In a model ----

SmallModel quantized_model(const ModelConfig& config, WeightFormat format, const char* on) {
    return {config, {}, {.rank = 2, .alpha = 3.0, .on = on, .frozen_format = format}};
}
ModelConfig gpt2_config() {
    return {.layers = 2, .heads = 2, .width = 8, .context = 7, .vocabulary = 11};
}
ModelConfig llama_config() {
    return test::llama_style({.layers = 2, .width = 16, .hidden = 12, .context = 7, .vocabulary = 11});
}

struct FrozenModel {
    ParameterStore adapters, frozen;
    Transformer model;

    FrozenModel(const Context& ctx, const SmallModel& small, DType dtype)
        : model(small.config, adapters, frozen, small.training, small.adapters) {
        adapters.allocate(ctx, dtype);
        frozen.allocate(ctx, dtype, {.gradients = false});
        for (const Parameter& parameter : adapters.parameters())
            fill_normal(ctx, parameter.value(), 0.1, 0.4, seed_of(parameter.name()));
    }
    Results run(const Context& ctx) const {
        std::vector<std::int32_t> ids;
        for (std::int32_t i = 0; i < 21; ++i) ids.push_back((i * i * 7 + 3 * i) % 11);
        const Tensor tokens = from_host(ctx, ids, {3, 7});
        std::ranges::reverse(ids);
        Transformer::Saved saved;
        Results results;
        results["loss"] = to_host(ctx, model.forward(ctx, tokens, from_host(ctx, ids, {3, 7}), saved));
        model.backward(ctx, saved);
        results["gradients"] = to_host(ctx, adapters.gradients());
        results["logits"] = to_host(ctx, model.logits_of_all(ctx, tokens));
        results["last logits"] = to_host(ctx, model.logits(ctx, tokens));
        return results;
    }
};

void expect_models_of_dequantized_matrices(const Context& ctx) {
    for (const ModelConfig& config : {gpt2_config(), llama_config()})
        for (const WeightFormat format : {WeightFormat::nf4, WeightFormat::int8})
            for (const char* on : {"all", "attn", "mlp"})
                for (const Recompute recompute : {Recompute::none, Recompute::activations, Recompute::block})
                    for (const DType dtype : {DType::f32, DType::bf16}) {
                        SmallModel small = quantized_model(config, format, on);
                        small.training.recompute = recompute;
                        const FrozenModel quantized(ctx, small, dtype);
                        small.adapters.frozen_format = WeightFormat::same;
                        const FrozenModel plain(ctx, small, dtype);
                        draw_equal_values(ctx, quantized.frozen, plain.frozen);
                        EXPECT_EQ(quantized.run(ctx), plain.run(ctx))
                            << name_of(format) << ", adapters on " << on << ", recompute "
                            << name_of(recompute);
                    }
}

TEST(QuantizedModel, ComputesTheBitsOfItsDequantizedMatrices) {
    expect_models_of_dequantized_matrices(Context(Device::cpu(), 2));
}

TEST(QuantizedModel, OnlyTheMatricesOfTheBlocksAreQuantized) {
    const Context ctx(Device::cpu(), 1);
    for (const ModelConfig& config : {gpt2_config(), llama_config()}) {
        const FrozenModel model(ctx, quantized_model(config, WeightFormat::nf4, "attn"), DType::f32);
        std::int64_t elements = 0;
        for (const Parameter& parameter : model.frozen.parameters()) {
            const std::string& name = parameter.name();
            const bool is_block_matrix = name.starts_with("h.") && parameter.decays();
            EXPECT_EQ(parameter.is_quantized(), is_block_matrix) << name;
            if (is_block_matrix) elements += parameter.shape().elements();
        }
        EXPECT_EQ(elements, config.layers * block_matrices(config).elements());
        for (const Parameter& parameter : model.adapters.parameters()) EXPECT_FALSE(parameter.is_quantized());
    }
    // Without adapters nothing is frozen, and without a store of their own frozen parameters are as `same`.
    ParameterStore parameters, frozen, whole;
    const Transformer trained(gpt2_config(), parameters, frozen, {}, {.frozen_format = WeightFormat::nf4});
    const Transformer together(gpt2_config(), whole, {}, {.rank = 2, .frozen_format = WeightFormat::nf4});
    EXPECT_EQ(parameters.code_words() + frozen.code_words() + whole.code_words(), 0);
}

// ---- On the GPU ----

class QuantizedOnCuda : public test::CudaTest {};

TEST_F(QuantizedOnCuda, LayersAndModelsComputeTheBitsOfTheirDequantizedMatrices) {
    const Context deterministic = gpu().with_deterministic(true);
    expect_layers_of_dequantized_weights(deterministic);
    expect_models_of_dequantized_matrices(deterministic);
}

}  // namespace
}  // namespace gradtile
