// FlashAttention-2 in bf16 on AVX-512 with avx512_bf16.
#include <gradtile/attention/cpu/bf16/products_avx512.h>
#include <gradtile/attention/cpu/bf16/table.h>
#include <gradtile/attention/cpu/selection.h>

namespace gradtile::attention::cpu {

constinit const FlashKernels<bfloat16> avx512_bf16_kernels = bf16_kernels_on<Avx512Products>("avx512-bf16");

}  // namespace gradtile::attention::cpu
