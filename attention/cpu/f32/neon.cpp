// FlashAttention-2 on NEON with arithmetic in float32, for every dtype with float32 sums.
#include <gradtile/attention/cpu/f32/table.h>
#include <gradtile/attention/cpu/isa/neon.h>
#include <gradtile/attention/cpu/selection.h>

namespace gradtile::attention::cpu {

constinit const FlashKernels<float> neon_f32_kernels = f32_kernels_on<Neon>("neon-f32");
constinit const FlashKernels<bfloat16> neon_bf16_kernels = f32_kernels_on<Neon, bfloat16>("neon-f32");
constinit const FlashKernels<float16> neon_f16_kernels = f32_kernels_on<Neon, float16>("neon-f32");

}  // namespace gradtile::attention::cpu
