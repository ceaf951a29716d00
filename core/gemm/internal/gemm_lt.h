#pragma once
/// Products through cuBLASLt, with work fused behind them.
#include <functional>

#include <gradtile/core/gemm/gemm.h>

namespace gradtile::cuda {

/// The operation fused behind a product, while the product is still in registers. GELU is the tanh form; c
/// and hidden are 16-bit of one type. (cuBLASLt would also sum columns there, for bias gradients, at up to
/// twice the time of reading the matrix once more: bench/results/2026-11-21-h200-gemm.md.)
struct GemmFusion {
    enum class Gelu { none, forward, backward };
    Gelu gelu = Gelu::none;
    /// forward: receives the product (with bias), c its GELU; backward: read, c = product * gelu'(hidden).
    Tensor hidden = {};
};

/// gemm() of operands as gemm_backend.h gives them, rank 2 or 3, K > 0. Sums run in float32, and parts of a
/// sum are never added in a 16-bit output's type. False when cuBLASLt has no kernel for it, or when
/// `in_steps`, another way to the same outputs, was measured to be faster; nothing has happened then.
bool gemm_lt(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b,
             const GemmOptions& options, const GemmFusion& fusion = {},
             const std::function<void()>& in_steps = {});

}  // namespace gradtile::cuda
