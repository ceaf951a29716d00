// Fits y = x W^T + b to points that lie on a plane, with the layer contract in plain sight:
// forward, the gradient of the loss, backward, one step down the slope.
#include <cmath>
#include <iostream>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/linear.h>

using namespace gradtile;

int main() {
    const Context ctx{Device::cpu()};
    const std::int64_t points = 256, features = 3;

    // What generated the data, and what training must find again.
    const Tensor true_weight = from_host(ctx, std::vector<double>{2.0, -1.0, 0.5}, {1, features}, DType::f32);
    const double true_bias = 0.25;
    const Tensor x = randn(ctx, {points, features}, DType::f32, Seed{1});
    const Tensor target = empty(ctx, {points, 1}, DType::f32);
    fill(ctx, target, true_bias);
    gemm(ctx, target, x, true_weight, {.trans_b = true, .accumulate = true});

    ParameterStore parameters;
    const Linear model{parameters, "plane", features, 1};
    parameters.allocate(ctx, DType::f32);
    parameters.initialize(ctx, Seed{2});

    const double learning_rate = 0.1;
    double loss = 0.0;
    for (int step = 1; step <= 200; ++step) {
        parameters.zero_gradients(ctx);
        Linear::Saved saved;
        const Tensor error = model.forward(ctx, x, saved);
        axpy(ctx, error, -1.0, target);  // the loss is mean(error^2) / 2, its gradient error / points

        loss = 0.0;
        for (const double e : to_host(ctx, error)) loss += e * e / (2.0 * points);
        if (step % 40 == 1) std::cout << "step " << step << "  loss " << loss << '\n';

        model.accumulate_gradients(ctx, error, saved);  // x is data: nobody needs its gradient
        axpy(ctx, parameters.values(), -learning_rate / points, parameters.gradients());
    }

    const auto weight = to_host(ctx, model.weight.value());
    const auto bias = to_host(ctx, model.bias.value());
    std::cout << "W = [" << weight[0] << ", " << weight[1] << ", " << weight[2] << "], b = " << bias[0]
              << '\n';
    const bool found = loss < 1e-10 && std::abs(weight[0] - 2.0) < 1e-4 && std::abs(weight[1] + 1.0) < 1e-4 &&
                       std::abs(weight[2] - 0.5) < 1e-4 && std::abs(bias[0] - true_bias) < 1e-4;
    std::cout << (found ? "found the plane\n" : "did NOT find the plane\n");
    return found ? 0 : 1;
}
