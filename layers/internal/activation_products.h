#pragma once
/// INTERNAL. Products with GELU's tanh form or SwiGLU by gradtile's kernels for Hopper; see
/// core/gemm/internal/hopper_product.h.
#include <gradtile/core/gemm/internal/hopper_product.h>

namespace gradtile::cuda {

enum class ActivationProduct : std::uint8_t {
    /// to[0] = a b[0]^T + bias and to[1] = gelu(to[0]), which reads the rounded to[0]: the same bits as in a
    /// separate pass.
    gelu,
    /// to[0] = (a b[0]) * gelu'(with[0]), and its column sums, if there is a tensor for them.
    gelu_gradient,
    /// to[0] = a b[0]^T (the gate), to[1] = a b[1]^T, to[2] = silu(to[0]) * to[1], which reads the rounded
    /// numbers.
    swiglu,
    /// to[0] and to[1] = the gradients of the gate with[0] and of with[1], from SwiGLU's gradient a b[0].
    swiglu_gradient,
};

/// The numbers of the applicable kernels, for GemmAlternatives. Empty if none applies.
std::span<const std::uint64_t> product_kernels(ActivationProduct product, const ProductOperands& operands);
/// Enqueues one of these kernels.
void run_product(const Context& ctx, ActivationProduct product, const ProductOperands& operands,
                 std::uint64_t kernel);

}  // namespace gradtile::cuda
