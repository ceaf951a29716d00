// Which float32 kernels run here, decided at run time.
#include <gradtile/attention/flash_f32.h>

#include <atomic>

namespace gradtile::attention::cpu {

const std::vector<const FlashKernels<float>*>& usable_float32_kernels() {
    static const auto usable = [] {
        std::vector<const FlashKernels<float>*> found;
#if defined(GRADTILE_HAVE_X86_F32)
        // These also ask whether the operating system saves the registers.
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            found.push_back(&avx512_f32_kernels);
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            found.push_back(&avx2_f32_kernels);
#endif
        found.push_back(&generic_kernels<float>());
        return found;
    }();
    return usable;
}

namespace {
std::atomic<const FlashKernels<float>*> forced_kernels{nullptr};
}

void force_float32_kernels(const FlashKernels<float>* kernels) {
    forced_kernels = kernels;
}

const FlashKernels<float>& float32_kernels() {
    const FlashKernels<float>* const forced = forced_kernels;
    return forced != nullptr ? *forced : *usable_float32_kernels().front();
}

}  // namespace gradtile::attention::cpu
