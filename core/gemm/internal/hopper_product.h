#pragma once
/// INTERNAL. The products that gradtile's own kernels for Hopper can compute. A kernel may also
/// apply an epilogue to the result; the folder that knows the epilogue instantiates it (launch.cuh).
#include <span>

#include <gradtile/core/gemm/internal/gemm_lt.h>

namespace gradtile::cuda {

/// to[0] [M, N] = op(a) op(b[0]), for matrices with one 16-bit dtype, and what epilogues use.
struct ProductOperands {
    Tensor a = {}, b[2] = {};
    bool trans_a = false, trans_b = false;  ///< as in GemmOptions
    Tensor to[3] = {}, with[2] = {};        ///< the epilogue's outputs and inputs [M, N], or undefined
    Tensor bias = {};                       ///< [N] or undefined
    Tensor column_sums = {};                ///< [ceil(M / 128), N] float32, or undefined
};

/// A matrix or matrix stack as the [count, rows, 1, columns] tensor that tensor_map() takes.
inline Tensor box_view(const Tensor& x) {
    const bool stack = x.rank() == 3;
    return {nullptr,
            x.raw_data(),
            x.device(),
            x.dtype(),
            {stack ? x.size(0) : 1, x.size(-2), 1, x.size(-1)},
            {stack ? x.stride(0) : 0, x.stride(-2), 0, x.stride(-1)}};
}

/// Returns the reason why the kernels cannot compute a product; nullptr if they can. The reasons are the GPU,
/// the dtypes, and rows that TMA cannot address: rows must be whole 16-byte pieces, aligned to 16 bytes. The
/// environment variable GRADTILE_HOPPER_GEMM=off turns these kernels off.
const char* why_not_hopper_product(const ProductOperands& operands);

/// The numbers of the applicable kernels without an activation, for GemmAlternatives: for a b^T with or
/// without a bias, and a b without one. Empty if none applies.
std::span<const std::uint64_t> hopper_product_kernels(const ProductOperands& operands);
/// Enqueues one of these kernels.
void run_hopper_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel);

}  // namespace gradtile::cuda
