// Few queries on NEON, for every dtype with float32 sums.
#include <gradtile/attention/cpu/few_queries/rows.h>
#include <gradtile/attention/cpu/isa/neon.h>
#include <gradtile/attention/cpu/selection.h>

namespace gradtile::attention::cpu {

constinit const FewQueriesKernels<float> neon_few_queries_f32 = few_queries_kernels_on<Neon, float>("neon");
constinit const FewQueriesKernels<bfloat16> neon_few_queries_bf16 =
    few_queries_kernels_on<Neon, bfloat16>("neon");
constinit const FewQueriesKernels<float16> neon_few_queries_f16 =
    few_queries_kernels_on<Neon, float16>("neon");

}  // namespace gradtile::attention::cpu
