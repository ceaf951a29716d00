#pragma once
/// The interface to the CPU's matrix library. The calling thread alone computes one block of a product. CMake
/// chooses gemm_onednn.cpp or gemm_cblas.cpp as the implementation.
#include <cstdint>

#include <gradtile/core/dtype.h>

namespace gradtile::cpu {

/// c [m, n] = alpha * op(a) [m, k] op(b) [k, n] (+ c). Matrices are row-major; `ld*` is the distance between
/// rows in elements.
struct GemmBlock {
    std::int64_t m, n, k;
    std::int64_t lda, ldb, ldc;
    bool trans_a, trans_b;
    bool accumulate;
    float alpha;
};

/// Multiplies a block with m, n, k > 0.
void library_gemm(const GemmBlock& block, const float* a, const float* b, float* c);

/// Whether the library multiplies bfloat16 faster than float32 on this processor. If not, gemm() converts
/// blocks to float32.
bool library_has_bfloat16();
/// Multiplies a bfloat16 block with float32 sums. alpha must be 1. Requires library_has_bfloat16().
void library_gemm(const GemmBlock& block, const bfloat16* a, const bfloat16* b, float* c);
/// Multiplies a bfloat16 block with a bfloat16 result: adds bias [n] (null for none), then rounds once.
/// accumulate must be false.
void library_gemm(const GemmBlock& block, const bfloat16* a, const bfloat16* b, const float* bias,
                  bfloat16* c);

/// float64 products in gradtile's own loops (gemm_f64.cpp), so that float64 works with every library.
void gemm_f64(const GemmBlock& block, double alpha, const double* a, const double* b, double* c);

}  // namespace gradtile::cpu
