// FlashAttention-2 in float32 on AVX2 and FMA.
#include <gradtile/attention/flash_f32_table.h>
#include <gradtile/attention/flash_select_cpu.h>
#include <gradtile/attention/simd_avx2.h>

namespace gradtile::attention::cpu {

constinit const FlashKernels<float> avx2_f32_kernels = f32_kernels_on<Avx2>("avx2-f32");

}  // namespace gradtile::attention::cpu
