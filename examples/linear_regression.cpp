// Fits y = x W^T + b, with three features x, to points that satisfy such an equation exactly. Shows the layer
// contract: forward, the loss gradient, backward, and a gradient descent step.
#include <cmath>
#include <iostream>

#include <gradtile/gradtile.h>

using namespace gradtile;

int main() {
    const Context ctx{Device::cpu()};
    const std::int64_t points = 256, features = 3;

    // The parameters that generate the data; training must recover them.
    const Tensor true_weight = from_host(ctx, std::vector<float>{2.0f, -1.0f, 0.5f}, {1, features});
    const double true_bias = 0.25;
    const Tensor x = randn(ctx, {points, features}, DType::f32, Seed{1});
    const Tensor target = empty(ctx, {points, 1}, DType::f32);
    fill(ctx, target, true_bias);
    gemm(ctx, target, x, true_weight, {.trans_b = true, .accumulate = true});

    ParameterStore parameters;
    const Linear model{parameters, "plane", features, 1};
    parameters.allocate(ctx, DType::f32);
    parameters.initialize(ctx, Seed{2});

    const double learning_rate = 0.05;
    double loss = 0.0;
    for (int step = 1; step <= 200; ++step) {
        parameters.reset_gradients();
        Linear::Saved saved;
        const Tensor error = subtract(ctx, model.forward(ctx, x, saved), target);
        loss = item(ctx, mean(ctx, multiply(ctx, error, error)));
        const Tensor d_prediction = scale(ctx, error, 2.0 / points);
        if (step % 40 == 1) std::cout << "step " << step << "  loss " << loss << '\n';

        model.accumulate_gradients(ctx, d_prediction, saved);  // x is data and needs no gradient
        axpy(ctx, parameters.values(), -learning_rate, parameters.gradients());
    }

    const auto weight = to_host(ctx, model.weight.value());
    const auto bias = to_host(ctx, model.bias.value());
    std::cout << "W: " << to_string(ctx, model.weight.value())
              << "\nb: " << to_string(ctx, model.bias.value()) << '\n';
    const bool found = loss < 1e-10 && std::abs(weight[0] - 2.0) < 1e-4 && std::abs(weight[1] + 1.0) < 1e-4 &&
                       std::abs(weight[2] - 0.5) < 1e-4 && std::abs(bias[0] - true_bias) < 1e-4;
    std::cout << (found ? "found the plane\n" : "did NOT find the plane\n");
    return found ? 0 : 1;
}
