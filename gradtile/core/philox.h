#pragma once
/// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
/// (SC11): a pure function of (counter, key), hence the same draws on every device and for every way of
/// cutting the work.
#include <array>
#include <cstdint>

#if defined(__CUDACC__)
#define GRADTILE_HOST_DEVICE __host__ __device__
#else
#define GRADTILE_HOST_DEVICE
#endif

namespace gradtile {

struct Philox {
    using Counter = std::array<std::uint32_t, 4>;
    using Key = std::array<std::uint32_t, 2>;

    static constexpr int rounds = 10;

    /// One round; the kernels that draw many counters at once keep them in lanes and call it lane by lane.
    GRADTILE_HOST_DEVICE static constexpr Counter round(Counter counter, Key key) {
        const std::uint64_t product_0 = std::uint64_t{0xD2511F53u} * counter[0];
        const std::uint64_t product_1 = std::uint64_t{0xCD9E8D57u} * counter[2];
        return {static_cast<std::uint32_t>(product_1 >> 32) ^ counter[1] ^ key[0],
                static_cast<std::uint32_t>(product_1),
                static_cast<std::uint32_t>(product_0 >> 32) ^ counter[3] ^ key[1],
                static_cast<std::uint32_t>(product_0)};
    }
    GRADTILE_HOST_DEVICE static constexpr Key next_key(Key key) {
        return {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};  // golden ratio, sqrt(3) - 1
    }
    GRADTILE_HOST_DEVICE static constexpr Counter draw(Counter counter, Key key) {
        for (int i = 0; i < rounds; ++i) {
            counter = round(counter, key);
            key = next_key(key);
        }
        return counter;
    }
};

/// Mixes a seed with what it is used for, so that unrelated draws never share a key (splitmix64's finaliser).
constexpr std::uint64_t mix_seed(std::uint64_t seed, std::uint64_t purpose) {
    std::uint64_t z = seed + 0x9E3779B97F4A7C15u * (purpose + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
constexpr Philox::Key philox_key(std::uint64_t seed) {
    return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
}

}  // namespace gradtile
