#pragma once
/// Matrix products: c = alpha * op(a) op(b) (+ c) (+ bias).
#include <gradtile/core/tensor.h>

namespace gradtile {

struct GemmOptions {
    bool trans_a = false;     ///< a is given as [.., K, M]
    bool trans_b = false;     ///< b is given as [.., N, K]
    bool accumulate = false;  ///< add to c instead of overwriting it
    double alpha = 1.0;
    Tensor bias = {};  ///< [N], added to every row of c; none when undefined
};

/// c [.., M, N], op(a) [.., M, K], op(b) [.., K, N]. The leading axes (at most two) are a batch and must be
/// equal; a and b may repeat matrices with stride 0, c may not. Rows may be strided and views transposed, but
/// one of the last two strides must be 1 in a and in b, and the last stride must be 1 in c. Dtypes (a, b ->
/// c): f64 -> f64; f32 -> f32; bf16 -> bf16 or f32; f16 -> f16 or f32. Sums are in float32 (f64: float64).
/// The result does not depend on the thread count: c is cut into fixed blocks, and one matrix library call
/// computes each block. On the CPU, products with at most 8 rows and trans_b have gradtile's own kernels,
/// whose results depend neither on the blocks nor on the other rows of a. Throws Error on other shapes,
/// strides or dtypes, and if c shares memory with a, b or the bias.
void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b,
          const GemmOptions& options = {});

/// Device memory that a CUDA context allocates for its matrix products when it is constructed.
inline constexpr std::size_t gemm_workspace_bytes = std::size_t{32} << 20;

/// The CPU matrix library's name and version: "oneDNN 2.6.3" or "OpenBLAS 0.3.21".
const char* cpu_matrix_library();

}  // namespace gradtile
