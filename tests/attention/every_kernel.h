#pragma once
/// All kernel sets for a dtype that this machine can run, including the AMX kernels on emulated tiles.
#include <type_traits>

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

/// Calls body() with every kernel set that computes the dtype.
template <class Body>
void for_every_kernel(DType dtype, Body&& body) {
    visit_floating(dtype, [&]<class T>(TypeTag<T>) {
        if constexpr (std::is_same_v<T, double>) {
            SCOPED_TRACE(::testing::Message() << dtype << ' ' << Algorithm::flash);
            body();
        } else {
            for (const cpu::FlashKernels<T>* kernels : every_kernel<T>()) {
                SCOPED_TRACE(::testing::Message() << dtype << ' ' << kernels->name);
                const cpu::ForcedKernels<T> forced(kernels);
                body();
            }
        }
    });
}

/// Calls body() with every kernel set that computes few queries: the special kernels, and the kernels for
/// many queries, which compute them on other machines.
template <class Body>
void for_every_kernel_of_few_queries(DType dtype, Body&& body) {
    visit_floating(dtype, [&]<class T>(TypeTag<T>) {
        if constexpr (cpu::has_few_queries_kernels<T>) {
            for (const cpu::FewQueriesKernels<T>* kernels : cpu::usable_few_queries_kernels<T>()) {
                SCOPED_TRACE(::testing::Message() << dtype << ' ' << kernels->name << " for few queries");
                const cpu::ForcedFewQueriesKernels<T> forced(kernels);
                body();
            }
            const cpu::ForcedFewQueriesKernels<T> none(nullptr);
            for_every_kernel(dtype, body);
        } else {
            for_every_kernel(dtype, body);
        }
    });
}

/// Calls body(algorithm) for the algorithms that take packed sequences: the naive form, and flash with every
/// kernel set that computes the dtype.
template <class Body>
void for_every_packed_algorithm(DType dtype, Body&& body) {
    {
        SCOPED_TRACE(::testing::Message() << dtype << ' ' << Algorithm::naive);
        body(Algorithm::naive);
    }
    for_every_kernel(dtype, [&] { body(Algorithm::flash); });
}

/// Repeats the tests for all algorithms.
template <class Body>
void for_every_algorithm(DType dtype, Body&& body) {
    for (const Algorithm algorithm : tiled_algorithms) {
        SCOPED_TRACE(::testing::Message() << dtype << ' ' << algorithm);
        body(algorithm);
    }
    for_every_packed_algorithm(dtype, body);
}

}  // namespace gradtile::attention::test
