// Products with few rows on AVX-512.
#include <gradtile/core/gemm/internal/few_rows_avx512.h>
#include <gradtile/core/gemm/internal/few_rows_kernel.h>

namespace gradtile::cpu {

constinit const FewRowsKernels avx512_few_rows = {"avx512", 8, few_rows<Avx512, float>,
                                                  few_rows<Avx512, bfloat16>, few_rows<Avx512, float16>};

}  // namespace gradtile::cpu
