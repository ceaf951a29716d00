#pragma once
/// INTERNAL. The float32 kernels for the instruction sets this binary was built with, and which of them run
/// here.
#include <vector>

#include <gradtile/attention/flash_kernels_cpu.h>

namespace gradtile::attention::cpu {

extern const FlashKernels<float> avx512_f32_kernels;
extern const FlashKernels<float> avx2_f32_kernels;

/// Those this machine runs, fastest first; the portable ones are always among them.
const std::vector<const FlashKernels<float>*>& usable_float32_kernels();
/// For tests: float32_kernels() returns these until called with nullptr.
void force_float32_kernels(const FlashKernels<float>* kernels);

}  // namespace gradtile::attention::cpu
