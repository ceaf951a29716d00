#include <gradtile/layers/mlp.h>

#include <tests/support/parameter_gradients.h>

namespace gradtile {
namespace {

using testing::expect_gradient;
using testing::expect_parameter_gradients;
using testing::weighted_sum;

TEST(Mlp, GradientsEqualFiniteDifferencesForEveryActivation) {
    const Context ctx(Device::cpu(), 2);
    for (const Activation activation : {Activation::gelu_tanh, Activation::gelu, Activation::swiglu}) {
        for (const bool bias : {false, true}) {
            ModelConfig config{.width = 6, .hidden = 10, .activation = activation, .bias = bias};
            ParameterStore parameters;
            const Mlp mlp(parameters, "mlp", config);
            parameters.allocate(ctx, DType::f64);
            copy(ctx, parameters.values(), randn(ctx, parameters.values().shape(), DType::f64, Seed{5}));
            const Tensor x = randn(ctx, {3, 4, 6}, DType::f64, Seed{3});
            const Tensor dy = randn(ctx, x.shape(), DType::f64, Seed{4});
            const auto loss = [&] {
                Mlp::Saved saved;
                return weighted_sum(ctx, mlp.forward(ctx, x, saved), dy);
            };
            Mlp::Saved saved;
            mlp.forward(ctx, x, saved);
            Tensor dx;
            expect_parameter_gradients(ctx, parameters, loss, [&] { dx = mlp.backward(ctx, dy, saved); });
            expect_gradient("x", x, to_host(ctx, dx), loss);
        }
    }
}

TEST(Mlp, NamesAndShapesFollowTheActivation) {
    ParameterStore gpt2, llama;
    const Mlp fc(gpt2, "mlp", {.width = 96});
    const Mlp gated(llama, "mlp", {.width = 96, .activation = Activation::swiglu, .bias = false});
    EXPECT_EQ(gpt2.find("mlp.fc.weight").shape(), (Shape{384, 96}));
    EXPECT_EQ(gpt2.find("mlp.proj.bias").shape(), (Shape{96}));
    EXPECT_EQ(llama.find("mlp.gate_up.weight").shape(), (Shape{512, 96}));  // 8/3 * 96 = 256, gate and up
    EXPECT_EQ(llama.find("mlp.down.weight").shape(), (Shape{96, 256}));
}

}  // namespace
}  // namespace gradtile
