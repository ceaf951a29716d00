// linear_activation.h on the GPU: cuBLASLt fuses the activation or its derivative with the product if it can.
#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/gemm/internal/gemm_lt.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/internal/column_sums_backend.h>
#include <gradtile/layers/internal/linear_activation_backend.h>

namespace gradtile::cuda {
namespace {

/// Whether cuBLASLt can fuse the activation. The only activation that it fuses and whose input it also stores
/// is GELU's tanh form, for 16-bit results.
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
    if (!fuse || !gemm_lt(ctx, y, x, weight, options, fusion, in_steps)) in_steps();
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
    if (!may_fuse(dy, activation) || !gemm_lt(ctx, d_hidden, dy, weight, {}, fusion, in_steps))
        return in_steps();
    if (column_sums.defined()) cuda::sum_columns(ctx, column_sums, d_hidden);
}

}  // namespace gradtile::cuda
