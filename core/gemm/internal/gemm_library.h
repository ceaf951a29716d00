#pragma once
/// The interface to the CPU's matrix library: one block of a product, computed by the calling thread alone.
/// gemm_onednn.cpp or gemm_openblas.cpp defines it; CMake chooses.
#include <cstdint>

#include <gradtile/core/dtype.h>

namespace gradtile::cpu {

/// c [m, n] = alpha * op(a) [m, k] op(b) [k, n] (+ c); row-major, `ld*` elements from one row to the next.
struct GemmBlock {
    std::int64_t m, n, k;
    std::int64_t lda, ldb, ldc;
    bool trans_a, trans_b;
    bool accumulate;
    float alpha;
};

/// m, n, k > 0.
void library_gemm(const GemmBlock& block, const float* a, const float* b, float* c);

/// Whether the library multiplies bfloat16 on this processor faster than float32; if not, gemm widens blocks.
bool library_has_bfloat16();
/// Products and sums in float32. alpha must be 1. Only when library_has_bfloat16().
void library_gemm(const GemmBlock& block, const bfloat16* a, const bfloat16* b, float* c);
/// The same, rounded once to bfloat16 after bias [n] (null for none) is added; accumulate must be false.
void library_gemm(const GemmBlock& block, const bfloat16* a, const bfloat16* b, const float* bias,
                  bfloat16* c);

/// float64: gemm_f64.cpp, gradtile's own loops, so that float64 exists with every library.
void gemm_f64(const GemmBlock& block, double alpha, const double* a, const double* b, double* c);

}  // namespace gradtile::cpu
