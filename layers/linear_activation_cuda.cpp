// linear_activation.h on the GPU: cuBLASLt, or gradtile's own kernel, fuses the activation or its derivative
// with the product if this is faster than two operators.
#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/gemm/internal/gemm_lt.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/internal/activation_products.h>
#include <gradtile/layers/internal/column_sums_backend.h>
#include <gradtile/layers/internal/linear_activation_backend.h>

namespace gradtile::cuda {
namespace {

/// Whether the activation may be fused: GELU's tanh form, which is the only activation that cuBLASLt fuses
/// and whose input it also stores, and SwiGLU; both for 16-bit results.
bool may_fuse(const Tensor& x, Activation activation) {
    return (activation == Activation::gelu_tanh || activation == Activation::swiglu) &&
           is_16_bit(x.dtype()) && x.size(1) > 0;
}

/// The gate (which = 0) or up (which = 1) half of an axis.
Tensor half_of(const Tensor& x, int axis, int which) {
    const std::int64_t length = x.size(axis) / 2;
    return x.slice(axis, which * length, length);
}

/// Ways to compute a product without a fused cuBLASLt kernel. They refer to `ctx` and `operands`.
GemmAlternatives alternatives_of(const Context& ctx, ActivationProduct product,
                                 const ProductOperands& operands, const std::function<void()>& in_steps) {
    return {.in_steps = in_steps,
            .kernels = product_kernels(product, operands),
            .run_kernel = [&ctx, product, &operands](std::uint64_t kernel) {
                run_product(ctx, product, operands, kernel);
            }};
}

bool run_gelu_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                      const Tensor& weight, const Tensor& bias, const std::function<void()>& in_steps) {
    const ProductOperands operands{.a = x, .b = {weight}, .trans_b = true, .to = {hidden, y}, .bias = bias};
    return gemm_lt(ctx, y, x, weight, {.trans_b = true, .bias = bias},
                   {.kind = GemmFusion::Kind::gelu_forward, .hidden = hidden},
                   alternatives_of(ctx, ActivationProduct::gelu, operands, in_steps));
}

bool run_swiglu_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                        const Tensor& weight, const std::function<void()>& in_steps) {
    const ProductOperands operands{.a = x,
                                   .b = {half_of(weight, 0, 0), half_of(weight, 0, 1)},
                                   .trans_b = true,
                                   .to = {half_of(hidden, 1, 0), half_of(hidden, 1, 1), y}};
    return gemm_lt(ctx, y, x, weight, {.trans_b = true},
                   {.kind = GemmFusion::Kind::gated_forward, .hidden = hidden},
                   alternatives_of(ctx, ActivationProduct::swiglu, operands, in_steps));
}

}  // namespace

void linear_activation_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                               const Tensor& weight, const Tensor& bias, Activation activation) {
    const auto in_steps = [&] {
        cuda::gemm(ctx, hidden, x, weight, {.trans_b = true, .bias = bias});
        cuda::activation_forward(ctx, y, hidden, activation);
    };
    // A deterministic context computes y from the rounded values in hidden, so that recomputing y from hidden
    // gives the same bits.
    bool done = false;
    if (may_fuse(x, activation) && !ctx.deterministic()) {
        if (!traits_of(activation).gated) {
            done = run_gelu_forward(ctx, y, hidden, x, weight, bias, in_steps);
        } else if (!bias.defined()) {
            done = run_swiglu_forward(ctx, y, hidden, x, weight, in_steps);
        }
    }
    if (!done) in_steps();
}

namespace {

bool run_gelu_backward(const Context& ctx, const SummedGradient& into, const Tensor& dy, const Tensor& weight,
                       const Tensor& hidden, const std::function<void()>& in_steps) {
    const Tensor &d_hidden = into.dy, &column_sums = into.column_sums;
    const ProductOperands operands{
        .a = dy, .b = {weight}, .to = {d_hidden}, .with = {hidden}, .column_sums = column_sums};
    GemmAlternatives alternatives =
        alternatives_of(ctx, ActivationProduct::gelu_gradient, operands, in_steps);
    alternatives.after_library = [&] {
        if (column_sums.defined()) cuda::sum_columns(ctx, column_sums, d_hidden);
    };
    return gemm_lt(ctx, d_hidden, dy, weight, {}, {.kind = GemmFusion::Kind::gelu_backward, .hidden = hidden},
                   alternatives);
}

bool run_swiglu_backward(const Context& ctx, const Tensor& d_hidden, const Tensor& dy, const Tensor& weight,
                         const Tensor& hidden, const Tensor& d_activated,
                         const std::function<void()>& in_steps) {
    const ProductOperands operands{.a = dy,
                                   .b = {weight},
                                   .to = {half_of(d_hidden, 1, 0), half_of(d_hidden, 1, 1)},
                                   .with = {half_of(hidden, 1, 0), half_of(hidden, 1, 1)}};
    return gemm_lt(ctx, d_activated, dy, weight, {},
                   {.kind = GemmFusion::Kind::gated_backward, .hidden = hidden},
                   alternatives_of(ctx, ActivationProduct::swiglu_gradient, operands, in_steps));
}

}  // namespace

void linear_activation_backward(const Context& ctx, const SummedGradient& into, const Tensor& dy,
                                const Tensor& weight, const Tensor& hidden, Activation activation,
                                const Tensor& d_activated) {
    const Tensor& d_hidden = into.dy;
    const bool gated = d_activated.defined();
    const auto in_steps = [&] {
        const Tensor& product = gated ? d_activated : d_hidden;
        cuda::gemm(ctx, product, dy, weight, {});
        if (into.column_sums.defined()) {
            cuda::activation_backward_summed(ctx, into, product, hidden, activation);
        } else {
            cuda::activation_backward(ctx, d_hidden, product, hidden, activation);
        }
    };
    bool done = false;
    if (may_fuse(dy, activation))
        done = gated ? run_swiglu_backward(ctx, d_hidden, dy, weight, hidden, d_activated, in_steps)
                     : run_gelu_backward(ctx, into, dy, weight, hidden, in_steps);
    if (!done) in_steps();
}

}  // namespace gradtile::cuda
