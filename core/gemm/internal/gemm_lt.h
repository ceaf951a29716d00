#pragma once
/// Products through cuBLASLt, optionally fused with GELU.
#include <functional>

#include <gradtile/core/gemm/gemm.h>

namespace gradtile::cuda {

/// The operation that is applied to a product while it is in registers. GELU is the tanh form; c and hidden
/// have the same 16-bit type. cuBLASLt could also sum columns for bias gradients, but this takes up to twice
/// as long as a separate pass over the matrix (bench/results/2026-11-21-h200-gemm.md).
struct GemmFusion {
    enum class Gelu { none, forward, backward };
    Gelu gelu = Gelu::none;
    /// forward: hidden = the product (with bias), c = gelu(hidden). backward: c = product * gelu'(hidden).
    Tensor hidden = {};
};

/// gemm() for operands that gemm_backend.h allows, with rank 2 or 3 and K > 0. Sums are in float32; partial
/// sums are never added in a 16-bit output's type. Returns false and does nothing when cuBLASLt has no kernel
/// for the product, or when `in_steps`, another way to compute the same outputs, is faster.
bool gemm_lt(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b,
             const GemmOptions& options, const GemmFusion& fusion = {},
             const std::function<void()>& in_steps = {});

}  // namespace gradtile::cuda
