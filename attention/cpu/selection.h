#pragma once
/// INTERNAL. The CPU kernels in this build, and which ones this machine can run.
#include <vector>

#include <gradtile/attention/cpu/kernels.h>

namespace gradtile::attention::cpu {

/// Defined only if the compiler supports the instruction set; usable only if the processor does.
extern const FlashKernels<float> avx512_f32_kernels;
extern const FlashKernels<float> avx2_f32_kernels;
extern const FlashKernels<bfloat16> amx_bf16_kernels;
extern const FlashKernels<bfloat16> avx512_bf16_kernels;
extern const FlashKernels<float> neon_f32_kernels;
extern const FlashKernels<bfloat16> neon_bf16_kernels;
extern const FlashKernels<float16> neon_f16_kernels;
extern const FewQueriesKernels<float> avx512_few_queries_f32, avx2_few_queries_f32, neon_few_queries_f32;
extern const FewQueriesKernels<bfloat16> avx512_few_queries_bf16, avx2_few_queries_bf16,
    neon_few_queries_bf16;
extern const FewQueriesKernels<float16> avx512_few_queries_f16, avx2_few_queries_f16, neon_few_queries_f16;

/// Returns all kernel sets that this machine can run, from the fastest set to the generic set.
template <class T>
const std::vector<const FlashKernels<T>*>& usable_kernels();

/// Returns the kernel set that the operator uses: the fastest set, unless a ForcedKernels object exists.
template <class T>
const FlashKernels<T>& chosen_kernels();

/// While this object exists, the operator uses the given kernels. For tests and benchmarks; at most one may
/// exist at a time.
template <class T>
class ForcedKernels {
  public:
    explicit ForcedKernels(const FlashKernels<T>* kernels);
    ~ForcedKernels();
    ForcedKernels(const ForcedKernels&) = delete;
    ForcedKernels& operator=(const ForcedKernels&) = delete;
};

/// Whether kernels for few queries exist for a dtype. For other dtypes FlashKernels compute few queries, too.
template <class T>
inline constexpr bool has_few_queries_kernels = std::is_same_v<Accumulator<T>, float>;

/// Returns all kernels for few queries that this machine can run, from the fastest on. The list is empty on
/// machines without AVX2 or NEON, and for float64.
template <class T>
const std::vector<const FewQueriesKernels<T>*>& usable_few_queries_kernels();

/// Returns the kernels that the operator uses for few queries: the fastest ones, unless a
/// ForcedFewQueriesKernels object exists. Null if there are none.
template <class T>
const FewQueriesKernels<T>* chosen_few_queries_kernels();

/// Like ForcedKernels. Null makes FlashKernels compute few queries.
template <class T>
class ForcedFewQueriesKernels {
  public:
    explicit ForcedFewQueriesKernels(const FewQueriesKernels<T>* kernels);
    ~ForcedFewQueriesKernels();
    ForcedFewQueriesKernels(const ForcedFewQueriesKernels&) = delete;
    ForcedFewQueriesKernels& operator=(const ForcedFewQueriesKernels&) = delete;
};

}  // namespace gradtile::attention::cpu
