// Few queries on AVX2 and FMA, for every dtype with float32 sums.
#include <gradtile/attention/cpu/few_queries/rows.h>
#include <gradtile/attention/cpu/isa/avx2.h>
#include <gradtile/attention/cpu/selection.h>

namespace gradtile::attention::cpu {

constinit const FewQueriesKernels<float> avx2_few_queries_f32 = few_queries_kernels_on<Avx2, float>("avx2");
constinit const FewQueriesKernels<bfloat16> avx2_few_queries_bf16 =
    few_queries_kernels_on<Avx2, bfloat16>("avx2");
constinit const FewQueriesKernels<float16> avx2_few_queries_f16 =
    few_queries_kernels_on<Avx2, float16>("avx2");

}  // namespace gradtile::attention::cpu
