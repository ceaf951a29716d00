// linear_gelu.h on the GPU: GELU and its derivative inside the product where cuBLASLt has it.
#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/gemm/internal/gemm_lt.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/internal/column_sums_backend.h>
#include <gradtile/layers/internal/linear_gelu_backend.h>

namespace gradtile::cuda {
namespace {

/// cuBLASLt's GELU is the tanh form, for 16-bit results.
bool may_fuse(const Tensor& x, Gelu::Form form) {
    return form == Gelu::Form::tanh && is_16_bit(x.dtype()) && x.size(1) > 0;
}

}  // namespace

void linear_gelu_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                         const Tensor& weight, const Tensor& bias, Gelu::Form form) {
    const GemmOptions options{.trans_b = true, .bias = bias};
    const GemmFusion fusion{.gelu = GemmFusion::Gelu::forward, .hidden = hidden};
    const auto in_steps = [&] {
        cuda::gemm(ctx, hidden, x, weight, options);
        cuda::gelu_forward(ctx, y, hidden, form);
    };
    // Where bits are promised y is the GELU of what hidden holds, so that it can be made again from there.
    const bool fuse = may_fuse(x, form) && !ctx.deterministic();
    if (!fuse || !gemm_lt(ctx, y, x, weight, options, fusion, in_steps)) in_steps();
}

void linear_gelu_backward(const Context& ctx, const SummedGradient& into, const Tensor& dy,
                          const Tensor& weight, const Tensor& hidden, Gelu::Form form) {
    const Tensor &d_hidden = into.dy, &column_sums = into.column_sums;
    const GemmFusion fusion{.gelu = GemmFusion::Gelu::backward, .hidden = hidden};
    const auto in_steps = [&] {
        cuda::gemm(ctx, d_hidden, dy, weight, {});
        if (column_sums.defined()) {
            cuda::gelu_backward_summed(ctx, into, d_hidden, hidden, form);
        } else {
            cuda::gelu_backward(ctx, d_hidden, d_hidden, hidden, form);
        }
    };
    if (!may_fuse(dy, form) || !gemm_lt(ctx, d_hidden, dy, weight, {}, fusion, in_steps)) return in_steps();
    if (column_sums.defined()) cuda::sum_columns(ctx, column_sums, d_hidden);
}

}  // namespace gradtile::cuda
