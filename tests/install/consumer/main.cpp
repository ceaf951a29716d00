// A program outside this project. It includes headers as <gradtile/...>, links one target, and uses no path
// in the build tree.
#include <cmath>
#include <iostream>

#include <gradtile/gradtile.h>
#include <gradtile/tools/tools.h>

int main() {
    using namespace gradtile;
    const Context ctx(Device::cpu(), 2);
    const Tensor a = randn(ctx, {5, 7}, DType::f32, Seed{1});
    const Tensor gram = empty(ctx, {5, 5}, DType::f32);
    gemm(ctx, gram, a, a, {.trans_b = true});

    double trace = 0, squares = 0;
    const auto g = to_host(ctx, gram), x = to_host(ctx, a);
    for (std::size_t i = 0; i < 5; ++i) trace += g[6 * i];
    for (const double value : x) squares += value * value;
    std::cout << "trace(A A^T) = " << trace << ", |A|^2 = " << squares << '\n';
    const bool agrees = std::abs(trace - squares) <= 1e-5 * squares;
    return agrees && generate_corpus(100, Seed{1}).text.size() >= 100 && preset("demo").model.layers > 0 ? 0
                                                                                                         : 1;
}
