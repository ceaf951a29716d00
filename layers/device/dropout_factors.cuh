#pragma once
/// Draws dropout's random numbers in a kernel. dropout.h defines the numbers.
#include <gradtile/layers/internal/dropout_backend.h>
#include <gradtile/layers/device/place.cuh>

namespace gradtile::cuda::device {

constexpr int dropout_group = 8;  // columns per Philox draw

/// Mask factors: `scale` for a kept element, 0 for a dropped element.
struct DropoutFactors {
    DropoutMask mask;
    Divisor tokens;

    explicit DropoutFactors(const DropoutMask& dropout_mask) : mask(dropout_mask), tokens(mask.tokens) {}

    /// Computes the factors for n columns. key = mask.key(), which a thread should compute only once.
    template <class S, int n>
    __device__ __forceinline__ void draw(S (&factors)[n], Philox::Key key, Place place) const {
        static_assert(n == dropout_group || n == 1);
        const std::int64_t sample = tokens.quotient_of(place.row);
        const Philox::Counter words =
            Philox::draw({static_cast<std::uint32_t>(place.column / dropout_group),
                          static_cast<std::uint32_t>(place.row - sample * mask.tokens), 0,
                          static_cast<std::uint32_t>(mask.first_sample + sample)},
                         key);
        const S scale = static_cast<S>(mask.scale);
        if constexpr (n == dropout_group) {
#pragma unroll
            for (int i = 0; i < n; ++i)
                factors[i] = (words[i / 2] >> 16 * (i % 2) & 0xffffu) >= mask.threshold ? scale : S(0);
        } else {
            const int i = static_cast<int>(place.column % dropout_group);
            const std::uint32_t word = i < 4 ? (i < 2 ? words[0] : words[1]) : (i < 6 ? words[2] : words[3]);
            factors[0] = (word >> 16 * (i % 2) & 0xffffu) >= mask.threshold ? scale : S(0);
        }
    }
};

}  // namespace gradtile::cuda::device
