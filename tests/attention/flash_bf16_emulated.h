#pragma once
/// The bf16 kernels on emulated AMX tiles. All steps except the products need a CPU with avx512_bf16.
#include <gradtile/attention/cpu/kernels.h>

namespace gradtile::attention::cpu {
extern const FlashKernels<bfloat16> emulated_bf16_kernels;
}
