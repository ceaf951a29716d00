#pragma once
/// Updates on the CPU of moments that are kept in 16 or 8 bits.
#include <algorithm>
#include <array>

#include <gradtile/train/optimizers/internal/moment_blocks.h>

namespace gradtile::cpu {

inline void load_moments(const bfloat16* stored, std::int64_t count, float* moments, std::size_t) {
    for (std::int64_t i = 0; i < count; ++i) moments[i] = static_cast<float>(stored[i]);
}

/// Rounds moment k of `count` elements; `words` are their words in the draws.
inline void store_moments(bfloat16* stored, std::int64_t count, const float* moments,
                          const std::uint32_t* words, std::size_t k) {
    for (std::int64_t i = 0; i < count; ++i)
        stored[i] = rounded_stochastically(moments[i], MomentDraws::bits(words[i], k));
}

inline void load_moments(const MomentBlock* stored, std::int64_t count, float* moments, std::size_t k) {
    const MomentCode code(k);
    for (std::int64_t i = 0; i < count; ++i) {
        const MomentBlock& block = stored[i / moment_block];
        const std::int64_t word = i % moment_block / MomentBlock::codes_per_word;
        moments[i] = code.decoded(block.codes[word] >> 8 * (i % MomentBlock::codes_per_word) & 0xffu,
                                  __builtin_bit_cast(float, block.largest));
    }
}

inline void store_moments(MomentBlock* stored, std::int64_t count, const float* moments,
                          const std::uint32_t* words, std::size_t k) {
    const MomentCode code(k);
    for (std::int64_t begin = 0; begin < count; begin += moment_block) {
        const std::int64_t end = std::min(count, begin + moment_block);
        MomentBlock block{};
        for (std::int64_t i = begin; i < end; ++i)
            block.largest = std::max(block.largest, magnitude_bits(moments[i]));
        const auto largest = __builtin_bit_cast(float, block.largest);
        for (std::int64_t i = begin; i < end; ++i)
            block.codes[(i - begin) / MomentBlock::codes_per_word] |=
                code.encoded(moments[i], largest, MomentDraws::bits(words[i], k))
                << 8 * (i % MomentBlock::codes_per_word);
        stored[begin / moment_block] = block;
    }
}

/// Calls update(begin, count, float (&moments)[n_moments][...]) for consecutive ranges of n elements, with
/// the moments in float32, and stores what the update leaves there, stochastically rounded. `element` is the
/// first element's offset in the store; for blocks, it is a multiple of 64.
template <std::size_t n_moments, class Moment, class Update>
void with_float_moments(std::int64_t n, const MomentDraws& draws, std::int64_t element,
                        const std::array<Moment*, n_moments>& stored, const Update& update) {
    static_assert(n_moments <= MomentDraws::moments);
    constexpr std::int64_t range = 256;  // the range's moments stay in the first-level cache
    static_assert(range % moment_block == 0);
    float moments[n_moments][range];
    std::uint32_t words[range];
    std::int64_t count = 0;
    for (std::int64_t begin = 0; begin < n; begin += count) {
        // Ranges end at multiples, so that the lower word of the draws' counters does not overflow in a
        // range.
        const std::int64_t start = (element + begin) % range;
        count = std::min(range - start, n - begin);
        for (std::size_t k = 0; k < n_moments; ++k)
            load_moments(advanced(stored[k], begin), count, moments[k], k);
        update(begin, count, moments);
        const std::int64_t unused = start % MomentDraws::elements;  // elements before the first in its draw
        Philox::draw_many(words, static_cast<int>(ceil_div(unused + count, MomentDraws::elements)),
                          draws.counter(element + begin), draws.key);
        for (std::size_t k = 0; k < n_moments; ++k)
            store_moments(advanced(stored[k], begin), count, moments[k], words + unused, k);
    }
}

}  // namespace gradtile::cpu
