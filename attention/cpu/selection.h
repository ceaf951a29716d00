#pragma once
/// INTERNAL. The CPU kernels this build holds and which of them this machine runs.
#include <vector>

#include <gradtile/attention/cpu/kernels.h>

namespace gradtile::attention::cpu {

/// Defined only where the compiler knows the instruction set; call them only where the processor does.
extern const FlashKernels<float> avx512_f32_kernels;
extern const FlashKernels<float> avx2_f32_kernels;
extern const FlashKernels<bfloat16> amx_bf16_kernels;
extern const FlashKernels<bfloat16> avx512_bf16_kernels;

/// Every set of kernels this machine runs, the fastest first, the generic ones last.
template <class T>
const std::vector<const FlashKernels<T>*>& usable_kernels();

/// What the operator uses: the fastest, unless a test forces others.
template <class T>
const FlashKernels<T>& chosen_kernels();

/// Makes the operator use one set of kernels while it lives. For tests and benchmarks, one at a time.
template <class T>
class ForcedKernels {
  public:
    explicit ForcedKernels(const FlashKernels<T>* kernels);
    ~ForcedKernels();
    ForcedKernels(const ForcedKernels&) = delete;
    ForcedKernels& operator=(const ForcedKernels&) = delete;
};

}  // namespace gradtile::attention::cpu
