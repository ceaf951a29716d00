// Matrix products on the GPU: cuBLASLt, or cuBLAS for float64 and when cuBLASLt has no kernel.
#include <limits>

#include <gradtile/core/gemm/internal/cublas.h>
#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/gemm/internal/gemm_lt.h>
#include <gradtile/core/gemm/internal/hopper_product.h>
#include <gradtile/core/internal/tensor_ops_backend.h>

namespace gradtile::cuda {
namespace {

int to_int(std::int64_t value) {
    check(value <= std::numeric_limits<int>::max(), "gemm: ", value, " does not fit cuBLAS's 32-bit sizes");
    return static_cast<int>(value);
}

int leading_dimension(const Tensor& x) {
    return to_int(row_distance(x));
}

/// Computes the product by one kernel that also adds the bias. Returns false if there is no such kernel.
bool gemm_fused(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b,
                const GemmOptions& options) {
    const ProductOperands operands{.a = a,
                                   .b = {b},
                                   .trans_a = options.trans_a,
                                   .trans_b = options.trans_b,
                                   .to = {c},
                                   .bias = options.bias};
    GemmAlternatives alternatives;
    if (!options.accumulate && options.alpha == 1.0 && c.rank() == 2) {
        alternatives.kernels = hopper_product_kernels(operands);
        alternatives.run_kernel = [&](std::uint64_t kernel) { run_hopper_product(ctx, operands, kernel); };
    }
    return gemm_lt(ctx, c, a, b, options, {}, alternatives);
}

}  // namespace

void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options) {
    if (c.rank() > 3) {  // cuBLAS supports one batch axis
        for (std::int64_t i = 0; i < c.size(0); ++i)
            cuda::gemm(ctx, c.select(0, i), a.select(0, i), b.select(0, i), options);
        return;
    }
    const std::int64_t k = a.size(options.trans_a ? -2 : -1);
    const bool wide = accumulator_of(a.dtype()) == DType::f64;
    if (k > 0 && !wide && gemm_fused(ctx, c, a, b, options)) return;
    if (options.bias.defined()) {
        // The bias is written to c before the product is added. So a 16-bit c is rounded a second time only
        // if the product also accumulates or the bias is float32.
        const Tensor bias = options.bias.expand(c.shape());
        if (options.accumulate) {
            cuda::axpy(ctx, c, 1.0, bias);
        } else {
            cuda::copy(ctx, c, bias);
        }
        GemmOptions onto_bias = options;
        onto_bias.bias = {};
        onto_bias.accumulate = true;
        cuda::gemm(ctx, c, a, b, onto_bias);
        return;
    }
    if (k == 0) {
        if (!options.accumulate) cuda::fill(ctx, c, 0.0);
        return;
    }
    // Row-major c = op(a) op(b) is column-major c^T = op(b)^T op(a)^T, and a row-major matrix in memory is
    // its transpose in column-major order.
    const double alpha = options.alpha, beta = options.accumulate ? 1.0 : 0.0;
    const float alpha_32 = static_cast<float>(alpha), beta_32 = static_cast<float>(beta);
    const void* scale = wide ? static_cast<const void*>(&alpha) : &alpha_32;
    const void* keep = wide ? static_cast<const void*>(&beta) : &beta_32;
    cublas_check(cublas().gemm_strided_batched(
        cublas_handle(ctx), options.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
        options.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, to_int(c.size(-1)), to_int(c.size(-2)), to_int(k), scale,
        b.raw_data(), cublas_type(b.dtype()), leading_dimension(b), matrix_distance(b), a.raw_data(),
        cublas_type(a.dtype()), leading_dimension(a), matrix_distance(a), keep, c.raw_data(),
        cublas_type(c.dtype()), leading_dimension(c), matrix_distance(c),
        to_int(c.rank() > 2 ? c.size(0) : 1), wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT));
}

}  // namespace gradtile::cuda
