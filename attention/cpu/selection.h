#pragma once
/// INTERNAL. The CPU kernels of this build, and which of them this machine can run.
#include <vector>

#include <gradtile/attention/cpu/kernels.h>

namespace gradtile::attention::cpu {

/// Defined only if the compiler supports the instruction set; usable only if the processor does.
extern const FlashKernels<float> avx512_f32_kernels;
extern const FlashKernels<float> avx2_f32_kernels;
extern const FlashKernels<bfloat16> amx_bf16_kernels;
extern const FlashKernels<bfloat16> avx512_bf16_kernels;

/// Returns all sets of kernels that this machine can run, from the fastest set to the generic set.
template <class T>
const std::vector<const FlashKernels<T>*>& usable_kernels();

/// Returns the set of kernels that the operator uses: the fastest set, unless a ForcedKernels object exists.
template <class T>
const FlashKernels<T>& chosen_kernels();

/// While this object exists, the operator uses the given kernels. For tests and benchmarks; at most one may
/// exist at a time.
template <class T>
class ForcedKernels {
  public:
    explicit ForcedKernels(const FlashKernels<T>* kernels);
    ~ForcedKernels();
    ForcedKernels(const ForcedKernels&) = delete;
    ForcedKernels& operator=(const ForcedKernels&) = delete;
};

}  // namespace gradtile::attention::cpu
