#pragma once
/// Products through cuBLASLt, optionally fused with GELU.
#include <functional>
#include <span>

#include <gradtile/core/gemm/gemm.h>

namespace gradtile::cuda {

/// The operation that is applied to a product while it is in registers. GELU is the tanh form; c and hidden
/// have the same 16-bit type. cuBLASLt could also sum columns for bias gradients, but this takes up to twice
/// as long as a separate pass over the matrix (bench/results/2026-11-21-h200-gemm.md).
struct GemmFusion {
    /// forward: hidden = the product (with bias), c = activation(hidden). backward: c = the gradient with
    /// respect to hidden, where the product is the gradient with respect to activation(hidden). A gated
    /// activation has gate and up in adjacent halves of a row; cuBLASLt cannot fuse it, so only alternatives
    /// compute it.
    enum class Kind { none, gelu_forward, gelu_backward, gated_forward, gated_backward };
    Kind kind = Kind::none;
    Tensor hidden = {};
};

/// Ways to compute a product's outputs without a fused cuBLASLt kernel. The first product of a kind times all
/// these ways; see gemm_algorithms.h.
struct GemmAlternatives {
    std::function<void()> in_steps = {};  ///< computes the same outputs by several operators
    /// Computes the outputs that a cuBLASLt kernel did not compute; called after that kernel.
    std::function<void()> after_library = {};
    /// Numbers that name gradtile's own kernels. They are stored in checkpoints, so each keeps its meaning.
    std::span<const std::uint64_t> kernels = {};
    std::function<void(std::uint64_t kernel)> run_kernel = {};
};

/// gemm() for operands that gemm_backend.h allows, with rank 2 or 3 and K > 0, by cuBLASLt or by an
/// alternative. Sums are in float32; partial sums are never added in a 16-bit output's type. Returns false
/// and does nothing when there is no kernel for the product, or when alternatives.in_steps is faster.
bool gemm_lt(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b,
             const GemmOptions& options, const GemmFusion& fusion = {},
             const GemmAlternatives& alternatives = {});

}  // namespace gradtile::cuda
