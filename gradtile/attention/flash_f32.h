#pragma once
/// INTERNAL. The float32 kernels this build holds and which of them this machine runs.
#include <vector>

#include <gradtile/attention/flash_kernels_cpu.h>

namespace gradtile::attention::cpu {

/// Defined only in builds for x86-64; call them only where the CPU has the instructions.
extern const FlashKernels<float> avx512_f32_kernels;
extern const FlashKernels<float> avx2_f32_kernels;

/// Every set of kernels this machine runs, the fastest first, the generic ones last.
const std::vector<const FlashKernels<float>*>& usable_float32_kernels();

/// For tests: makes float32_kernels() return these; null for the fastest again.
void force_float32_kernels(const FlashKernels<float>* kernels);

}  // namespace gradtile::attention::cpu
