#pragma once
/// Needs a CPU with avx512_bf16 (for all but the products).
#include <gradtile/attention/cpu/kernels.h>

namespace gradtile::attention::cpu {
extern const FlashKernels<bfloat16> emulated_bf16_kernels;
}
