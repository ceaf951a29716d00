#pragma once
/// The row and column of a thread's elements, and fast divisions to compute them.
#include <cstdint>

#include <cuda_runtime.h>

namespace gradtile::cuda::device {

/// Where the first of several neighbouring elements is.
struct Place {
    std::int64_t row, column;
};

/// Returns index / divisor. If both fit 32 bits, which is nearly always so, a 32-bit division takes a third
/// of the time.
__device__ __forceinline__ std::int64_t quotient(std::int64_t index, std::int64_t divisor) {
    if (((index | divisor) >> 32) == 0) return static_cast<unsigned>(index) / static_cast<unsigned>(divisor);
    return index / divisor;
}

/// A divisor that the host knows. If dividend and divisor fit 31 bits, which is nearly always so, the
/// division is a multiplication and a shift (Granlund and Montgomery 1994).
struct Divisor {
    std::int64_t value;
    std::uint32_t multiplier = 0;
    int shift = 0;

    explicit Divisor(std::int64_t divisor) : value(divisor) {
        if (value < 1 || value >> 31 != 0) return;
        while (std::int64_t{1} << shift < value) ++shift;
        multiplier = static_cast<std::uint32_t>(
            ((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - static_cast<std::uint64_t>(value))) /
                static_cast<std::uint64_t>(value) +
            1);
    }
    __device__ __forceinline__ std::int64_t quotient_of(std::int64_t dividend) const {
        if (((dividend | value) >> 31) != 0) return dividend / value;
        const auto n = static_cast<std::uint32_t>(dividend);
        return (__umulhi(n, multiplier) + n) >> shift;
    }
};

}  // namespace gradtile::cuda::device
