// FlashAttention-2 in float32 on AVX2 and FMA.
#include <gradtile/attention/cpu/f32/table.h>
#include <gradtile/attention/cpu/isa/avx2.h>
#include <gradtile/attention/cpu/selection.h>

namespace gradtile::attention::cpu {

constinit const FlashKernels<float> avx2_f32_kernels = f32_kernels_on<Avx2>("avx2-f32");

}  // namespace gradtile::attention::cpu
