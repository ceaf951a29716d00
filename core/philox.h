#pragma once
/// Philox4x32-10, the counter-based generator by Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
/// (SC11). The generator is a pure function of (counter, key), so the numbers do not depend on the device or
/// on how work is divided.
#include <array>
#include <cstdint>

#include <gradtile/core/host_device.h>

namespace gradtile {

struct Philox {
    using Counter = std::array<std::uint32_t, 4>;
    using Key = std::array<std::uint32_t, 2>;

    static constexpr int rounds = 10;

    // The functions are always_inline because kernels compiled for one instruction set call them: the linker
    // might keep an out-of-line copy that other machines cannot run.

    /// The full 64-bit product.
    [[gnu::always_inline]] GRADTILE_HOST_DEVICE static constexpr std::uint64_t wide_product(std::uint32_t a,
                                                                                            std::uint32_t b) {
#ifdef __CUDA_ARCH__
        // Two 32-bit products cost less than one product with 64-bit factors, even if the upper halves are 0.
        return std::uint64_t{__umulhi(a, b)} << 32 | a * b;
#else
        return std::uint64_t{a} * b;
#endif
    }
    /// One round, applied to (c0, c1, c2, c3) in place.
    [[gnu::always_inline]] GRADTILE_HOST_DEVICE static constexpr void round(std::uint32_t& c0,
                                                                            std::uint32_t& c1,
                                                                            std::uint32_t& c2,
                                                                            std::uint32_t& c3, Key key) {
        const std::uint64_t product_0 = wide_product(0xD2511F53u, c0);
        const std::uint64_t product_1 = wide_product(0xCD9E8D57u, c2);
        c0 = static_cast<std::uint32_t>(product_1 >> 32) ^ c1 ^ key[0];
        c1 = static_cast<std::uint32_t>(product_1);
        c2 = static_cast<std::uint32_t>(product_0 >> 32) ^ c3 ^ key[1];
        c3 = static_cast<std::uint32_t>(product_0);
    }
    [[gnu::always_inline]] GRADTILE_HOST_DEVICE static constexpr Key next_key(Key key) {
        return {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};  // golden ratio, sqrt(3) - 1
    }
    GRADTILE_HOST_DEVICE static constexpr Counter draw(Counter counter, Key key) {
        for (int i = 0; i < rounds; ++i) {
            round(counter[0], counter[1], counter[2], counter[3], key);
            key = next_key(key);
        }
        return counter;
    }
    /// Replaces each counter by its draw. The rounds of independent draws alternate, which hides their
    /// latency.
    template <int n>
    GRADTILE_HOST_DEVICE static constexpr void draw_together(Counter (&counters)[n], Key key) {
        for (int i = 0; i < rounds; ++i) {
            for (Counter& c : counters) round(c[0], c[1], c[2], c[3], key);
            key = next_key(key);
        }
    }
    /// words[4 * l .. 4 * l + 3] = draw({first[0] + l, first[1], first[2], first[3]}, key) for l = 0 .. n-1,
    /// in a loop over l that vectorises.
    [[gnu::always_inline]] static void draw_many(std::uint32_t* words, int n, Counter first, Key key) {
        const std::array<Key, rounds> keys = keys_of_rounds(key);
        for (int l = 0; l < n; ++l) {
            std::uint32_t c0 = first[0] + static_cast<std::uint32_t>(l), c1 = first[1], c2 = first[2],
                          c3 = first[3];
            all_rounds(c0, c1, c2, c3, keys);
            words[4 * l] = c0;
            words[4 * l + 1] = c1;
            words[4 * l + 2] = c2;
            words[4 * l + 3] = c3;
        }
    }
    /// Makes draws for `rows` consecutive values in the second counter word: draw l = row * groups + group
    /// has the counter {first[0] + group, first[1] + row, first[2], first[3]}.
    template <int groups, int rows>
    [[gnu::always_inline]] static void draw_grid(std::uint32_t (&words)[4 * groups * rows], Counter first,
                                                 Key key) {
        static_assert((groups & (groups - 1)) == 0, "a power of 2, so that the division vectorises");
        const std::array<Key, rounds> keys = keys_of_rounds(key);
        for (std::uint32_t l = 0; l < groups * rows; ++l) {
            std::uint32_t c0 = first[0] + l % groups, c1 = first[1] + l / groups, c2 = first[2],
                          c3 = first[3];
            all_rounds(c0, c1, c2, c3, keys);
            words[4 * l] = c0;
            words[4 * l + 1] = c1;
            words[4 * l + 2] = c2;
            words[4 * l + 3] = c3;
        }
    }
    /// words[w][l] = word w of draw({first[0], first[1] + l, first[2], first[3]}, key), in a loop over l that
    /// vectorises.
    template <int n>
    [[gnu::always_inline]] static void draw_rows(std::uint32_t (&words)[4][n], Counter first, Key key) {
        const std::array<Key, rounds> keys = keys_of_rounds(key);
        for (int l = 0; l < n; ++l) {
            std::uint32_t c0 = first[0], c1 = first[1] + static_cast<std::uint32_t>(l), c2 = first[2],
                          c3 = first[3];
            all_rounds(c0, c1, c2, c3, keys);
            words[0][l] = c0;
            words[1][l] = c1;
            words[2][l] = c2;
            words[3][l] = c3;
        }
    }

  private:
    [[gnu::always_inline]] static std::array<Key, rounds> keys_of_rounds(Key key) {
        std::array<Key, rounds> keys;
        for (Key& round_key : keys) {
            round_key = key;
            key = next_key(key);
        }
        return keys;
    }
    [[gnu::always_inline]] static void all_rounds(std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2,
                                                  std::uint32_t& c3, const std::array<Key, rounds>& keys) {
#ifndef __CUDACC__
#pragma GCC unroll 10  // an inner loop would prevent the compiler from vectorising the outer loop
#endif
        for (int i = 0; i < rounds; ++i) round(c0, c1, c2, c3, keys[static_cast<std::size_t>(i)]);
    }
};

/// Mixes a seed with a number for its purpose, so that unrelated draws have different keys (splitmix64's
/// finaliser).
GRADTILE_HOST_DEVICE constexpr std::uint64_t mix_seed(std::uint64_t seed, std::uint64_t purpose) {
    std::uint64_t z = seed + 0x9E3779B97F4A7C15u * (purpose + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
GRADTILE_HOST_DEVICE constexpr Philox::Key philox_key(std::uint64_t seed) {
    return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
}

}  // namespace gradtile
