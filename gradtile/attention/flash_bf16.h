#pragma once
/// INTERNAL. The bf16 kernels this build holds and which of them this machine runs.
#include <vector>

#include <gradtile/attention/flash_kernels_cpu.h>

namespace gradtile::attention::cpu {

/// Defined only where the compiler knows the instruction set; call them only where the CPU does.
extern const FlashKernels<bfloat16> amx_bf16_kernels;
extern const FlashKernels<bfloat16> avx512_bf16_kernels;

/// avx512_bf16 with the other AVX-512 sets the kernels use (F, BW, DQ, VL), enabled by the operating system.
bool cpu_has_avx512_bf16();
/// AMX with bf16 products on top of that, granted to this process.
bool cpu_has_amx_bf16();

/// Every set of kernels this machine runs, the fastest first, the generic ones last.
const std::vector<const FlashKernels<bfloat16>*>& usable_bfloat16_kernels();

/// For tests: makes bfloat16_kernels() return these; null for the fastest again.
void force_bfloat16_kernels(const FlashKernels<bfloat16>* kernels);

}  // namespace gradtile::attention::cpu
