#pragma once
/// Updates on the CPU of moments that are kept in bfloat16.
#include <algorithm>
#include <array>

#include <gradtile/train/optimizers/internal/moment_rounding.h>

namespace gradtile::cpu {

/// Calls update(begin, count, float (&moments)[n_moments][...]) for consecutive ranges of n elements, with
/// the moments in float32, and stores what the update leaves there, stochastically rounded. `element` is the
/// first element's offset in the store.
template <std::size_t n_moments, class Update>
void with_float_moments(std::int64_t n, const MomentDraws& draws, std::int64_t element,
                        const std::array<bfloat16*, n_moments>& stored, const Update& update) {
    static_assert(n_moments <= MomentDraws::moments);
    constexpr std::int64_t range = 256;  // the range's moments stay in the first-level cache
    float moments[n_moments][range];
    std::uint32_t words[range];
    std::int64_t count = 0;
    for (std::int64_t begin = 0; begin < n; begin += count) {
        // Ranges end at multiples, so that the lower word of the draws' counters does not overflow in a
        // range.
        const std::int64_t start = (element + begin) % range;
        count = std::min(range - start, n - begin);
        for (std::size_t k = 0; k < n_moments; ++k)
            for (std::int64_t i = 0; i < count; ++i) moments[k][i] = static_cast<float>(stored[k][begin + i]);
        update(begin, count, moments);
        const std::int64_t unused = start % MomentDraws::elements;  // elements before the first in its draw
        Philox::draw_many(words, static_cast<int>(ceil_div(unused + count, MomentDraws::elements)),
                          draws.counter(element + begin), draws.key);
        for (std::size_t k = 0; k < n_moments; ++k)
            for (std::int64_t i = 0; i < count; ++i)
                stored[k][begin + i] =
                    rounded_stochastically(moments[k][i], MomentDraws::bits(words[unused + i], k));
    }
}

}  // namespace gradtile::cpu
