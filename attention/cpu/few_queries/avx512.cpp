// Few queries on AVX-512, for every dtype with float32 sums.
#include <gradtile/attention/cpu/few_queries/rows.h>
#include <gradtile/attention/cpu/isa/avx512.h>
#include <gradtile/attention/cpu/selection.h>

namespace gradtile::attention::cpu {

constinit const FewQueriesKernels<float> avx512_few_queries_f32 =
    few_queries_kernels_on<Avx512, float>("avx512");
constinit const FewQueriesKernels<bfloat16> avx512_few_queries_bf16 =
    few_queries_kernels_on<Avx512, bfloat16>("avx512");
constinit const FewQueriesKernels<float16> avx512_few_queries_f16 =
    few_queries_kernels_on<Avx512, float16>("avx512");

}  // namespace gradtile::attention::cpu
