// linear_activation.h on the CPU: the product, then the activation in a separate pass. Applying GELU to each
// block of the product directly after computing the block was slower in float32: 1 to 2% for a 6x384 model,
// 3% for 4x128 (bench/results/2026-11-21-cpu-fused-gelu.md).
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/internal/column_sums_backend.h>
#include <gradtile/layers/internal/linear_activation_backend.h>

namespace gradtile::cpu {

void linear_activation_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                               const Tensor& weight, const Tensor& bias, Activation activation) {
    gradtile::gemm(ctx, hidden, x, weight, {.trans_b = true, .bias = bias});
    activation_forward(ctx, y, hidden, activation);
}

void linear_activation_backward(const Context& ctx, const SummedGradient& into, const Tensor& dy,
                                const Tensor& weight, const Tensor& hidden, Activation activation,
                                const Tensor& d_activated) {
    const Tensor &d_hidden = into.dy, &column_sums = into.column_sums;
    const Tensor& product = d_activated.defined() ? d_activated : d_hidden;
    gradtile::gemm(ctx, product, dy, weight);
    activation_backward(ctx, d_hidden, product, hidden, activation);
    if (column_sums.defined()) sum_columns(ctx, column_sums, d_hidden);
}

}  // namespace gradtile::cpu
