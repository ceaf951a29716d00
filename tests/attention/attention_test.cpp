#include <gradtile/attention/attention.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention {
namespace {

TEST(Attention, Float64FlashEqualsNaive) {
    const Context ctx(Device::cpu(), 2);
    for (const bool causal : {false, true}) {
        const Tensor q = randn(ctx, {2, 70, 4, 8}, DType::f64, Seed{1});
        const Tensor k = randn(ctx, {2, 130, 2, 8}, DType::f64, Seed{2});
        const Tensor v = randn(ctx, {2, 130, 2, 16}, DType::f64, Seed{3});
        const Tensor d_o = randn(ctx, {2, 70, 4, 16}, DType::f64, Seed{4});
        Options options{.causal = causal};
        Saved flash, naive;
        forward(ctx, q, k, v, options, flash);
        const Gradients flash_gradients = backward(ctx, d_o, options, flash);
        options.algorithm = Algorithm::naive;
        forward(ctx, q, k, v, options, naive);
        const Gradients naive_gradients = backward(ctx, d_o, options, naive);
        const auto near = [&](const Tensor& a, const Tensor& b) {
            EXPECT_THAT(to_host(ctx, a), testing::Pointwise(testing::DoubleNear(1e-12), to_host(ctx, b)));
        };
        near(flash.o, naive.o);
        near(flash.lse, naive.lse);
        near(flash_gradients.q, naive_gradients.q);
        near(flash_gradients.k, naive_gradients.k);
        near(flash_gradients.v, naive_gradients.v);
    }
}

}  // namespace
}  // namespace gradtile::attention
