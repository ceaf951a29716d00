// FlashAttention-2 in float32 on AVX-512.
#include <gradtile/attention/flash_f32_table.h>
#include <gradtile/attention/flash_select_cpu.h>
#include <gradtile/attention/simd_avx512.h>

namespace gradtile::attention::cpu {

constinit const FlashKernels<float> avx512_f32_kernels = f32_kernels_on<Avx512>("avx512-f32");

}  // namespace gradtile::attention::cpu
