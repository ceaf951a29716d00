#pragma once
/// All sets of kernels for a dtype that this machine can run, including the AMX kernels on emulated tiles.
#include <gradtile/core/cpu/cpu_features.h>

#include "attention_testing.h"
#include "flash_bf16_emulated.h"

namespace gradtile::attention::test {

template <class T>
std::vector<const cpu::FlashKernels<T>*> every_kernel() {
    auto kernels = cpu::usable_kernels<T>();
#if defined(GRADTILE_HAVE_AVX512_BF16)
    if constexpr (std::is_same_v<T, bfloat16>)
        if (cpu_has_avx512_bf16()) kernels.push_back(&cpu::emulated_bf16_kernels);
#endif
    return kernels;
}

}  // namespace gradtile::attention::test
