// linear_activation.h on the GPU: cuBLASLt, or a kernel of gradtile's own, fuses the activation or its
// derivative with the product if this is faster.
#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/gemm/internal/gemm_lt.h>
#include <gradtile/layers/hopper/internal/activation_products.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/internal/column_sums_backend.h>
#include <gradtile/layers/internal/linear_activation_backend.h>

namespace gradtile::cuda {
namespace {

/// Whether the activation may be fused: GELU's tanh form, for 16-bit results. This is the only activation
/// that cuBLASLt fuses and whose input it also stores.
bool may_fuse(const Tensor& x, Activation activation) {
    return activation == Activation::gelu_tanh && is_16_bit(x.dtype()) && x.size(1) > 0;
}

}  // namespace

void linear_activation_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                               const Tensor& weight, const Tensor& bias, Activation activation) {
    const GemmOptions options{.trans_b = true, .bias = bias};
    const GemmFusion fusion{.gelu = GemmFusion::Gelu::forward, .hidden = hidden};
    const auto in_steps = [&] {
        cuda::gemm(ctx, hidden, x, weight, options);
        cuda::activation_forward(ctx, y, hidden, activation);
    };
    // A deterministic context computes y from the rounded values in hidden, so that recomputing y from hidden
    // gives the same bits.
    const bool fuse = may_fuse(x, activation) && !ctx.deterministic();
    const ProductOperands operands{.a = x, .b = weight, .trans_b = true, .to = {hidden, y}, .bias = bias};
    const GemmAlternatives alternatives{
        .in_steps = in_steps,
        .kernels = fuse ? gelu_product_kernels(operands) : std::span<const std::uint64_t>{},
        .run_kernel = [&](std::uint64_t kernel) { run_gelu_product(ctx, operands, kernel); }};
    if (!fuse || !gemm_lt(ctx, y, x, weight, options, fusion, alternatives)) in_steps();
}

void linear_activation_backward(const Context& ctx, const SummedGradient& into, const Tensor& dy,
                                const Tensor& weight, const Tensor& hidden, Activation activation) {
    const Tensor &d_hidden = into.dy, &column_sums = into.column_sums;
    const GemmFusion fusion{.gelu = GemmFusion::Gelu::backward, .hidden = hidden};
    const auto in_steps = [&] {
        cuda::gemm(ctx, d_hidden, dy, weight, {});
        if (column_sums.defined()) {
            cuda::activation_backward_summed(ctx, into, d_hidden, hidden, activation);
        } else {
            cuda::activation_backward(ctx, d_hidden, d_hidden, hidden, activation);
        }
    };
    const ProductOperands operands{
        .a = dy, .b = weight, .to = {d_hidden}, .with = hidden, .column_sums = column_sums};
    const bool fuse = may_fuse(dy, activation);
    const GemmAlternatives alternatives{
        .in_steps = in_steps,
        .after_library =
            [&] {
                if (column_sums.defined()) cuda::sum_columns(ctx, column_sums, d_hidden);
            },
        .kernels = fuse ? gelu_gradient_product_kernels(operands) : std::span<const std::uint64_t>{},
        .run_kernel = [&](std::uint64_t kernel) { run_gelu_gradient_product(ctx, operands, kernel); }};
    if (!fuse || !gemm_lt(ctx, d_hidden, dy, weight, {}, fusion, alternatives)) in_steps();
}

}  // namespace gradtile::cuda
