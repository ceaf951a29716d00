#pragma once
/// INTERNAL. Products of contiguous rows.
#include <cstdint>

#include <gradtile/core/dtype.h>

namespace gradtile::attention::cpu {

/// y += a * x.
template <class A>
void add_scaled(std::int64_t n, A a, const A* __restrict x, A* __restrict y) {
    for (std::int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

/// Computes a dot product in 16 partial sums, so that the compiler can keep the sums in vector registers.
template <class A, class T>
A dot(const T* a, const T* b, std::int64_t n) {
    constexpr std::int64_t lanes = 16;
    A sums[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (std::int64_t lane = 0; lane < lanes; ++lane)
            sums[lane] += convert<A>(a[i + lane]) * convert<A>(b[i + lane]);
    for (std::int64_t lane = 0; i + lane < n; ++lane)
        sums[lane] += convert<A>(a[i + lane]) * convert<A>(b[i + lane]);
    A sum = 0;
    for (const A lane : sums) sum += lane;
    return sum;
}

}  // namespace gradtile::attention::cpu
