#pragma once
/// Sums and maxima over a row in a fixed number of interleaved lanes. Without -ffast-math, a compiler may not
/// reorder a floating-point sum, so a plain loop takes one addition latency per element. Lanes specify an
/// order that is the same on every machine and can be vectorised.
#include <cstdint>

namespace gradtile {

/// Two AVX-512 or four AVX2 registers hide the latency of float additions.
inline constexpr int lane_count = 32;

template <class T>
struct Lanes {
    T lane[lane_count];

    explicit Lanes(T start = T(0)) {
        for (T& value : lane) value = start;
    }
    T& operator[](int l) { return lane[l]; }

    /// Combines the lanes pairwise: lane l with l + 16, then with l + 8, and so on.
    template <class Fold>
    T fold(Fold&& combine) {
#pragma GCC unroll 5  // each step then has a constant number of lanes
        for (int half = lane_count / 2; half > 0; half /= 2)
            for (int l = 0; l < half; ++l) lane[l] = combine(lane[l], lane[l + half]);
        return lane[0];
    }
    T sum() {
        return fold([](T a, T b) { return a + b; });
    }
    T max() {
        return fold([](T a, T b) { return a < b ? b : a; });
    }
};

/// Calls body(i, lane) for i = 0 .. n-1 with lane = i % lane_count.
template <class Body>
inline void for_lanes(std::int64_t n, Body&& body) {
    std::int64_t begin = 0;
    for (; begin + lane_count <= n; begin += lane_count)
        for (int lane = 0; lane < lane_count; ++lane) body(begin + lane, lane);
    for (int lane = 0; begin + lane < n; ++lane) body(begin + lane, lane);
}

}  // namespace gradtile
