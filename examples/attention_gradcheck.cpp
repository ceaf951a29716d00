// Calls the attention operator directly: compares the flash algorithm with the naive one, and its gradients
// with finite differences.
#include <iostream>
#include <limits>

#include <gradtile/attention/attention.h>
#include <gradtile/core/compare.h>
#include <gradtile/core/gradcheck.h>

using namespace gradtile;

/// The interface that gradient_check requires: forward computes outputs, backward computes input gradients.
struct CausalAttention {
    attention::Options options;
    attention::Saved saved = {};

    Tensor forward(const Context& ctx, const std::vector<Tensor>& qkv) {
        return attention::forward(ctx, qkv[0], qkv[1], qkv[2], options, saved);
    }
    std::vector<Tensor> backward(const Context& ctx, const std::vector<Tensor>&, const Tensor& d_o) {
        auto gradients = attention::backward(ctx, d_o, options, saved);
        return {gradients.q, gradients.k, gradients.v};
    }
};

int main() {
    const Context ctx{Device::cpu()};
    const Shape shape{2, 113, 4, 32};  // [B, S, H, D]
    const Tensor q = randn(ctx, shape, DType::f64, Seed{1});
    const Tensor k = randn(ctx, shape, DType::f64, Seed{2});
    const Tensor v = randn(ctx, shape, DType::f64, Seed{3});
    const Tensor d_o = randn(ctx, shape, DType::f64, Seed{4});

    attention::Options options;  // flash: saves only O and one log-sum-exp per row
    options.causal = true;
    options.window.left = 32;
    attention::Saved saved;
    const Tensor o = attention::forward(ctx, q, k, v, options, saved);
    const auto gradients = attention::backward(ctx, d_o, options, saved);

    options.algorithm = attention::Algorithm::naive;  // stores S and P
    attention::Saved reference;
    const Tensor o_reference = attention::forward(ctx, q, k, v, options, reference);
    const auto gradients_reference = attention::backward(ctx, d_o, options, reference);

    // Both algorithms sum over at most 113 keys, with a few roundings per key.
    const double bound = 4.0 * static_cast<double>(shape[1]) * std::numeric_limits<double>::epsilon();
    bool ok = true;
    const auto agree = [&](const char* name, const Tensor& x, const Tensor& expected) {
        const Comparison difference = compare(x, expected);
        std::cout << name << ": " << difference;
        ok &= difference.absolute.error < bound * difference.largest;
    };
    agree("o ", o, o_reference);
    agree("dq", gradients.q, gradients_reference.q);
    agree("dk", gradients.k, gradients_reference.k);
    agree("dv", gradients.v, gradients_reference.v);

    // gradient_check works for any function with a hand-written backward.
    options.algorithm = attention::Algorithm::flash;
    const GradientReport report =
        gradient_check(ctx, CausalAttention{options}, {q, k, v}, {.elements = 16, .names = {"q", "k", "v"}});
    std::cout << report;
    ok &= report.ok();
    std::cout << (ok ? "all gradients are correct\n" : "a gradient is WRONG\n");
    return ok ? 0 : 1;
}
