// FlashAttention-2 in bf16 on AVX-512 with avx512_bf16.
#include <gradtile/attention/flash_bf16_table.h>
#include <gradtile/attention/flash_select_cpu.h>
#include <gradtile/attention/tiles_avx512_bf16.h>

namespace gradtile::attention::cpu {

constinit const FlashKernels<bfloat16> avx512_bf16_kernels = bf16_kernels_on<Avx512Tiles>("avx512-bf16");

}  // namespace gradtile::attention::cpu
