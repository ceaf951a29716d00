// Products with few rows on NEON.
#include <gradtile/core/gemm/internal/few_rows_kernel.h>
#include <gradtile/core/gemm/internal/few_rows_neon.h>

namespace gradtile::cpu {

constinit const FewRowsKernels neon_few_rows = {"neon", 4, few_rows<Neon, float>, few_rows<Neon, bfloat16>,
                                                few_rows<Neon, float16>};

}  // namespace gradtile::cpu
