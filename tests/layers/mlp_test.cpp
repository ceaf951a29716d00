#include <gradtile/layers/transformer/mlp.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gradcheck.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

TEST(Mlp, GradientsEqualFiniteDifferencesForEveryActivation) {
    const Context ctx(Device::cpu(), 2);
    for (const auto& [activation, name] : EnumNames<Activation>::names) {
        SCOPED_TRACE(name);
        for (const bool bias : {false, true}) {
            ModelConfig config{.width = 6, .hidden = 10, .activation = activation, .bias = bias};
            ParameterStore parameters;
            const Mlp mlp(parameters, "mlp", config);
            parameters.allocate(ctx, DType::f64);
            copy(ctx, parameters.values(), randn(ctx, parameters.values().shape(), DType::f64, Seed{5}));
            const Tensor x = randn(ctx, {3, 4, 6}, DType::f64, Seed{3});
            const auto report = gradient_check_layer(ctx, mlp, x, parameters.parameters());
            EXPECT_TRUE(report.ok()) << report;
        }
    }
}

TEST(Mlp, NamesAndShapesFollowTheActivation) {
    ParameterStore gpt2, llama;
    const Mlp fc(gpt2, "mlp", {.width = 96});
    const Mlp gated(llama, "mlp", {.width = 96, .activation = Activation::swiglu, .bias = false});
    EXPECT_EQ(gpt2.find("mlp.fc.weight").shape(), (Shape{384, 96}));
    EXPECT_EQ(gpt2.find("mlp.proj.bias").shape(), (Shape{96}));
    // Gate and up have 8/3 * 96 = 256 rows each.
    EXPECT_EQ(llama.find("mlp.gate_up.weight").shape(), (Shape{512, 96}));
    EXPECT_EQ(llama.find("mlp.down.weight").shape(), (Shape{96, 256}));
}

}  // namespace
}  // namespace gradtile
