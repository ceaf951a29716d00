#pragma once
/// The CPU's products with few rows, c = alpha * a b^T (+ c): a step of generation multiplies one row, or one
/// row per text, by every weight matrix. Such a product takes as long as reading b, so all threads together
/// must read b once, in order. Matrix libraries are slower, because they are optimised for many rows.
#include <vector>

#include <gradtile/core/gemm/internal/gemm_library.h>

namespace gradtile::cpu {

/// Multiplies a block: a [m, k] and b [n, k] have contiguous rows (trans_b, not trans_a); m, n, k >= 1. Sums
/// are float32. The summation order depends on k only, so elements of c depend neither on m nor on how c is
/// cut into blocks.
template <class T>
using FewRowsProduct = void (*)(const GemmBlock& block, const T* a, const T* b, float* c);

/// The products for one instruction set.
struct FewRowsKernels {
    const char* name;
    std::int64_t max_rows_f32;  // with more rows, the matrix library is faster
    FewRowsProduct<float> f32;
    FewRowsProduct<bfloat16> bf16;
    FewRowsProduct<float16> f16;
};

// Defined in the sources for their instruction sets.
extern const FewRowsKernels avx512_bf16_few_rows, avx512_few_rows, avx2_few_rows;
extern const FewRowsKernels neon_bf16_few_rows, neon_few_rows;

/// The kernels that this machine can run, the fastest first; empty without AVX2 or NEON.
const std::vector<const FewRowsKernels*>& usable_few_rows_kernels();

/// Returns the kernel that computes `product`, or null when the matrix library is faster or has no
/// alternative.
template <class T>
FewRowsProduct<T> few_rows_product(const GemmBlock& product);

/// Returns how many columns of c [m, n] one block has. The result may depend on the thread count, because the
/// elements of c do not depend on how c is cut.
std::int64_t few_rows_columns(const GemmBlock& product, std::size_t element_bytes, int threads);

/// While this object exists, every thread uses these kernels (null: the matrix library), so that tests reach
/// all kernels on one machine.
class ForcedFewRowsKernels {
  public:
    explicit ForcedFewRowsKernels(const FewRowsKernels* kernels);
    ~ForcedFewRowsKernels();
    ForcedFewRowsKernels(const ForcedFewRowsKernels&) = delete;
    ForcedFewRowsKernels& operator=(const ForcedFewRowsKernels&) = delete;
};

}  // namespace gradtile::cpu
