#include <gradtile/layers/learned_factors.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_math.h>

#include <support/error_message.h>
#include <support/on_cuda.h>

namespace gradtile {
namespace {

using test::message_of;

constexpr std::int64_t dim = 8;

/// A gate whose heads are x [B,T,H*D] itself, once gated and once more added to the result.
struct GatedInput {
    struct Saved {
        Tensor x;
        HeadGate::Saved gate, added;
    };
    HeadGate gate;
    std::int64_t heads;

    GatedInput(ParameterStore& store, std::int64_t count)
        : gate(store, "gate", count * dim, count, 2.0), heads(count) {}
    Tensor split(const Tensor& x) const { return x.reshape({x.size(0), x.size(1), heads, dim}); }
    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const {
        saved.x = x;
        const Tensor y = gate.forward(ctx, x, split(x), saved.gate);
        gate.forward_add(ctx, y, x, split(x), saved.added);
        return y.reshape(x.shape());
    }
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
        const Tensor dx = zeros(ctx, dy.shape(), dy.dtype());
        for (const HeadGate::Saved* pass : {&saved.gate, &saved.added}) {
            const Tensor d_heads = empty(ctx, split(dy).shape(), dy.dtype());
            const Tensor d_logits = gate.backward_heads(ctx, d_heads, split(dy), split(saved.x), *pass);
            axpy(ctx, dx, 1.0, d_heads.reshape(dx.shape()));
            gate.backward_add_x(ctx, dx, d_logits, *pass);
        }
        return dx;
    }
};

// Roundings: a product over 16 columns in each direction, a sum over a head, and the formula, whose sigmoid
// and its slope are below 1. A gate's logit, and the gradient of one, are rounded to the dtype; weights are
// about 1, so that the logits are below 16, and the result's error relative to its largest element is at most
// that of the logit.
test::LayerSuite suite_of(std::int64_t heads) {
    return {.width = heads * dim,
            .operations = 100,
            .rounded_within = 80,
            .leading = {{1, 1}, {2, 3}, {3, 171}},
            .rank_2 = false};
}

TEST(HeadGate, PassesTheLayerSuite) {
    for (const std::int64_t heads : {1, 3})  // 8 and 24 columns, of which the gates read 8 and 16
        test::check_layer([&](ParameterStore& store) { return GatedInput(store, heads); }, suite_of(heads));
}

/// One gate and its gradients against their definition; the heads and the sum are views into wider rows.
TEST(HeadGate, EqualsItsDefinition) {
    const Context ctx(Device::cpu(), 2);
    const std::int64_t heads = 3, width = 20;
    ParameterStore store;
    const HeadGate gate(store, "gate", width, heads, 2.0);
    store.allocate(ctx, DType::f64);
    store.initialize(ctx, Seed{1});
    EXPECT_THAT(to_host(ctx, gate.linear.weight.value()), testing::Each(0.0));
    EXPECT_EQ(gate.linear.weight.shape(), (Shape{heads, 16}));
    copy(ctx, gate.linear.weight.value(), randn(ctx, {heads, 16}, DType::f64, Seed{2}));
    const Tensor x = randn(ctx, {2, 5, width}, DType::f64, Seed{3});
    const Tensor wide = randn(ctx, {2, 5, 2 * heads * dim}, DType::f64, Seed{4});
    const Tensor packed = randn(ctx, {2, 5, 3 * heads * dim}, DType::f64, Seed{5});
    const auto view = [&](const Tensor& all, std::int64_t first) {
        return all.slice(2, first * heads * dim, heads * dim).reshape({2, 5, heads, dim});
    };
    const Tensor rows = view(wide, 1), sum = view(packed, 2), before = cast(ctx, packed, DType::f64);
    HeadGate::Saved saved, added;
    const Tensor y = gate.forward(ctx, x, rows, saved);
    gate.forward_add(ctx, sum, x, rows, added);
    const auto logit = [&](std::int64_t token, std::int64_t head) {
        double total = 0;
        for (std::int64_t c = 0; c < 16; ++c)
            total += gate.linear.weight.value().data<double>()[head * 16 + c] *
                     x.data<double>()[token * width + c];
        return total;
    };
    const auto ys = to_host(ctx, y), xs = to_host(ctx, rows), sums = to_host(ctx, sum),
               olds = to_host(ctx, view(before, 2));
    const Tensor dy = randn(ctx, y.shape(), DType::f64, Seed{6}), d_heads = empty(ctx, y.shape(), DType::f64);
    const auto d_logits = to_host(ctx, gate.backward_heads(ctx, d_heads, dy, rows, saved));
    const auto ds = to_host(ctx, dy), dxs = to_host(ctx, d_heads);
    for (std::int64_t row = 0; row < 10 * heads; ++row) {
        const double s = 1 / (1 + std::exp(-logit(row / heads, row % heads)));
        double product = 0;
        for (std::int64_t d = 0; d < dim; ++d) {
            const auto i = static_cast<std::size_t>(row * dim + d);
            EXPECT_NEAR(ys[i], 2 * s * xs[i], 1e-14);
            EXPECT_NEAR(sums[i], olds[i] + 2 * s * xs[i], 1e-14);
            EXPECT_NEAR(dxs[i], 2 * s * ds[i], 1e-14);
            product += ds[i] * xs[i];
        }
        EXPECT_NEAR(d_logits[static_cast<std::size_t>(row)], 2 * s * (1 - s) * product, 1e-13);
    }
    EXPECT_EQ(to_host(ctx, gate.recompute(ctx, rows, saved)), ys);
    for (std::int64_t first : {0, 1})  // the other columns of the packed rows are untouched
        EXPECT_EQ(to_host(ctx, view(packed, first)), to_host(ctx, view(before, first)));
    gate.backward_heads(ctx, dy, dy, rows, saved);
    EXPECT_EQ(to_host(ctx, dy), dxs) << "in place";
}

TEST(HeadGate, SaturatesWithoutNaN) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const HeadGate gate(store, "gate", 1, 1, 1.0);
    store.allocate(ctx, DType::f32);
    fill(ctx, gate.linear.weight.value(), 1.0);
    HeadGate::Saved saved;
    const Tensor x = from_host(ctx, std::vector<double>{-2000, 2000}, {1, 2, 1}, DType::f32);
    const Tensor rows = from_host(ctx, std::vector<double>{3, 3}, {1, 2, 1, 1}, DType::f32);
    EXPECT_THAT(to_host(ctx, gate.forward(ctx, x, rows, saved)), testing::ElementsAre(0.0, 3.0));
    const Tensor d_heads = empty(ctx, rows.shape(), DType::f32);
    EXPECT_THAT(to_host(ctx, gate.backward_heads(ctx, d_heads, rows, rows, saved)), testing::Each(0.0));
}

TEST(HeadGate, RefusesOperandsThatItDoesNotSupport) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const HeadGate gate(store, "gate", 20, 3, 1.0);
    store.allocate(ctx, DType::f32);
    HeadGate::Saved saved;
    const Tensor x = zeros(ctx, {2, 5, 20}, DType::f32), rows = zeros(ctx, {2, 5, 3, dim}, DType::f32);
    const auto refusal = [&](const Tensor& input, const Tensor& heads) {
        return message_of([&] { gate.forward(ctx, input, heads, saved); });
    };
    EXPECT_THAT(refusal(zeros(ctx, {2, 5, 8}, DType::f32), rows), testing::HasSubstr("C at least 16"));
    EXPECT_THAT(refusal(x, zeros(ctx, {2, 5, 4, dim}, DType::f32)),
                testing::HasSubstr("expected [B, T, H, D]"));
    EXPECT_THAT(refusal(x, zeros(ctx, {2, 5, 3, dim}, DType::f64)), testing::HasSubstr("heads"));
    EXPECT_THAT(message_of([&] { gate.forward_add(ctx, rows, x, rows, saved); }),
                testing::HasSubstr("the result"));
    EXPECT_THAT(message_of([&] { gate.backward_heads(ctx, rows, x, rows, {}); }),
                testing::HasSubstr("requires the saved values"));
}

using OnCuda = test::OnCuda;

TEST_F(OnCuda, HeadGateMatchesTheCpu) {
    for (const std::int64_t heads : {1, 3, 17})
        test::check_layer_on_cuda(
            gpu(), [&](ParameterStore& store) { return GatedInput(store, heads); }, suite_of(heads));
}

}  // namespace
}  // namespace gradtile
