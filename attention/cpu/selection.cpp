// Selects the kernels for this machine at run time.
#include <gradtile/attention/cpu/selection.h>

#include <atomic>

#include <gradtile/core/cpu/cpu_features.h>

namespace gradtile::attention::cpu {
namespace {

template <class T>
std::atomic<const FlashKernels<T>*> forced{nullptr};

template <class T>
struct ForcedFewQueries {
    std::atomic<bool> is_set{false};
    std::atomic<const FewQueriesKernels<T>*> kernels{nullptr};
};
template <class T>
ForcedFewQueries<T> forced_few_queries;

}  // namespace

template <class T>
const std::vector<const FlashKernels<T>*>& usable_kernels() {
    static const auto usable = [] {
        std::vector<const FlashKernels<T>*> found;
        if constexpr (std::is_same_v<T, float>) {
#if defined(GRADTILE_HAVE_X86_F32)
            if (cpu_has_avx512()) found.push_back(&avx512_f32_kernels);
            if (cpu_has_avx2_fma()) found.push_back(&avx2_f32_kernels);
#endif
        } else if constexpr (std::is_same_v<T, bfloat16>) {
#if defined(GRADTILE_HAVE_AMX_BF16)
            if (cpu_has_amx_bf16()) found.push_back(&amx_bf16_kernels);
#endif
#if defined(GRADTILE_HAVE_AVX512_BF16)
            if (cpu_has_avx512_bf16()) found.push_back(&avx512_bf16_kernels);
#endif
        }
#if defined(GRADTILE_HAVE_NEON)
        if constexpr (std::is_same_v<T, float>) found.push_back(&neon_f32_kernels);
        if constexpr (std::is_same_v<T, bfloat16>) found.push_back(&neon_bf16_kernels);
        if constexpr (std::is_same_v<T, float16>) found.push_back(&neon_f16_kernels);
#endif
        found.push_back(&generic_kernels<T>());
        return found;
    }();
    return usable;
}

template <class T>
const FlashKernels<T>& chosen_kernels() {
    const FlashKernels<T>* const kernels = forced<T>;
    return kernels != nullptr ? *kernels : *usable_kernels<T>().front();
}

template <class T>
ForcedKernels<T>::ForcedKernels(const FlashKernels<T>* kernels) {
    forced<T> = kernels;
}
template <class T>
ForcedKernels<T>::~ForcedKernels() {
    forced<T> = nullptr;
}

template <class T>
const std::vector<const FewQueriesKernels<T>*>& usable_few_queries_kernels() {
    static const auto usable = [] {
        std::vector<const FewQueriesKernels<T>*> found;
#if defined(GRADTILE_HAVE_X86_F32)
        [[maybe_unused]] const auto add_usable = [&](const FewQueriesKernels<T>& avx512,
                                                     const FewQueriesKernels<T>& avx2) {
            if (cpu_has_avx512()) found.push_back(&avx512);
            if (cpu_has_avx2_fma()) found.push_back(&avx2);
        };
        if constexpr (std::is_same_v<T, float>) add_usable(avx512_few_queries_f32, avx2_few_queries_f32);
        if constexpr (std::is_same_v<T, bfloat16>) add_usable(avx512_few_queries_bf16, avx2_few_queries_bf16);
        if constexpr (std::is_same_v<T, float16>) add_usable(avx512_few_queries_f16, avx2_few_queries_f16);
#elif defined(GRADTILE_HAVE_NEON)
        if constexpr (std::is_same_v<T, float>) found.push_back(&neon_few_queries_f32);
        if constexpr (std::is_same_v<T, bfloat16>) found.push_back(&neon_few_queries_bf16);
        if constexpr (std::is_same_v<T, float16>) found.push_back(&neon_few_queries_f16);
#endif
        return found;
    }();
    return usable;
}

template <class T>
const FewQueriesKernels<T>* chosen_few_queries_kernels() {
    if (forced_few_queries<T>.is_set) return forced_few_queries<T>.kernels;
    const auto& usable = usable_few_queries_kernels<T>();
    return usable.empty() ? nullptr : usable.front();
}

template <class T>
ForcedFewQueriesKernels<T>::ForcedFewQueriesKernels(const FewQueriesKernels<T>* kernels) {
    forced_few_queries<T>.kernels = kernels;
    forced_few_queries<T>.is_set = true;
}
template <class T>
ForcedFewQueriesKernels<T>::~ForcedFewQueriesKernels() {
    forced_few_queries<T>.is_set = false;
}

template const FlashKernels<double>& chosen_kernels();
template const FlashKernels<float>& chosen_kernels();
template const FlashKernels<bfloat16>& chosen_kernels();
template const FlashKernels<float16>& chosen_kernels();
template const std::vector<const FlashKernels<float>*>& usable_kernels();
template const std::vector<const FlashKernels<bfloat16>*>& usable_kernels();
template const std::vector<const FlashKernels<float16>*>& usable_kernels();
template class ForcedKernels<float>;
template class ForcedKernels<bfloat16>;
template class ForcedKernels<float16>;
template const FewQueriesKernels<double>* chosen_few_queries_kernels();
template const FewQueriesKernels<float>* chosen_few_queries_kernels();
template const FewQueriesKernels<bfloat16>* chosen_few_queries_kernels();
template const FewQueriesKernels<float16>* chosen_few_queries_kernels();
template const std::vector<const FewQueriesKernels<float>*>& usable_few_queries_kernels();
template const std::vector<const FewQueriesKernels<bfloat16>*>& usable_few_queries_kernels();
template const std::vector<const FewQueriesKernels<float16>*>& usable_few_queries_kernels();
template class ForcedFewQueriesKernels<float>;
template class ForcedFewQueriesKernels<bfloat16>;
template class ForcedFewQueriesKernels<float16>;

}  // namespace gradtile::attention::cpu
