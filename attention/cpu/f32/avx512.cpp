// FlashAttention-2 in float32 on AVX-512.
#include <gradtile/attention/cpu/f32/table.h>
#include <gradtile/attention/cpu/isa/avx512.h>
#include <gradtile/attention/cpu/selection.h>

namespace gradtile::attention::cpu {

constinit const FlashKernels<float> avx512_f32_kernels = f32_kernels_on<Avx512>("avx512-f32");

}  // namespace gradtile::attention::cpu
