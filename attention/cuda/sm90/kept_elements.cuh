#pragma once
/// Dropout in the Hopper kernels: which elements in a warp's accumulators are kept.
///
/// A Philox draw covers eight neighbouring keys in a row (ScoreRule), but the accumulators give a lane single
/// elements from many draws. So each lane makes one draw per eight elements that it holds, and packs the
/// decisions so that the bits for one lane are contiguous. A few exchanges transpose the bits: in the end a
/// lane has one bit per element. The exchanges cost one instruction per five elements.
#include <gradtile/attention/score_rule.h>
#include <gradtile/attention/cuda/common/mma.cuh>

namespace gradtile::attention::cuda::device {

/// The parameters that all draws for one head share.
struct HeadDraws {
    Philox::Key key;
    std::uint32_t head, sample, threshold;

    __device__ __forceinline__ Philox::Counter counter(int row, int key_group) const {
        return {static_cast<std::uint32_t>(key_group), static_cast<std::uint32_t>(row), head, sample};
    }
};

__device__ __forceinline__ HeadDraws head_draws(const DropoutDraws& draws, const Philox::Key& key,
                                                int sequence, int head) {
    return {key, static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(draws.first_sample + sequence),
            draws.threshold};
}

/// Selects bytes from (a, b) by their indices 0 to 7. A selector with bit 3 set repeats the byte's sign in
/// all its bits.
__device__ __forceinline__ std::uint32_t select_bytes(std::uint32_t a, std::uint32_t b,
                                                      std::uint32_t selectors) {
    std::uint32_t bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selectors));
    return bytes;
}

/// Calls f(draw, w, bits) for each draw and each word w in it: bit 0 is set if key 2 w is kept, bit 16 if key
/// 2 w + 1 is kept.
template <int n, class F>
__device__ __forceinline__ void for_each_pair_of_keys(Philox::Counter (&counters)[n], const HeadDraws& draws,
                                                      F&& f) {
    Philox::draw_together(counters, draws.key);
    // min(max(u, t) - t, 1) with t = threshold - 1: 1 if u >= threshold, else 0.
    const std::uint32_t t = (draws.threshold - 1) * 0x10001u, minus_t = __vneg2(t);
#pragma unroll
    for (int d = 0; d < n; ++d)
#pragma unroll
        for (int w = 0; w < 4; ++w) f(d, w, __viaddmin_u16x2(__vmaxu2(counters[d][w], t), minus_t, 0x10001u));
}

/// The kept elements among 16 queries x `keys` keys. The accumulators' rows are queries.
template <int keys>
class KeptKeys {
    static constexpr int groups = (keys / 8 + 3) / 4;  ///< draws per lane for each of its two rows

  public:
    /// (row, key) is the warp's first pair; key is a multiple of 8.
    __device__ __forceinline__ void draw(const HeadDraws& draws, int row, int key) {
        // A group has two bits in each byte of bits_. Tiles with more keys are for kernels without dropout.
        static_assert(groups <= 4);
        const int lane = lane_index(), quad_lane = lane % 4;
        // Lane q in a quad draws for tiles 4 i + q. lane_bits[j]: the bits that lanes 2 j and 2 j + 1 in the
        // quad need, in bytes: {even keys for 2 j, even keys for 2 j + 1, odd keys for 2 j, odd keys for 2 j
        // + 1}.
        std::uint32_t lane_bits[2] = {};
#pragma unroll
        for (int i = 0; i < groups; ++i) {
            Philox::Counter counters[2];
#pragma unroll
            for (int half = 0; half < 2; ++half)
                counters[half] = draws.counter(row + lane / 4 + half * 8, key / 8 + 4 * i + quad_lane);
            for_each_pair_of_keys(counters, draws, [&](int half, int w, std::uint32_t bits) {
                lane_bits[w / 2] += bits << (w % 2 * 8 + 2 * i + half);
            });
        }
        const bool is_odd = lane % 2 != 0, is_upper = quad_lane >= 2;
        const std::uint32_t own = lane_bits[is_upper ? 1 : 0],
                            other = __shfl_xor_sync(~0u, is_upper ? lane_bits[0] : lane_bits[1], 2),
                            for_even = select_bytes(own, other, 0x6420),
                            for_odd = select_bytes(own, other, 0x7531), mine = is_odd ? for_odd : for_even,
                            others = __shfl_xor_sync(~0u, is_odd ? for_even : for_odd, 1);
        // The halves of `mine` come from lanes q and q ^ 2, those of `others` from q ^ 1 and q ^ 3.
        const std::uint32_t first = (is_odd ? 0x1054u : 0x5410u) ^ (is_upper ? 0x2222u : 0u);
        bits_[0] = select_bytes(mine, others, first);
        bits_[1] = select_bytes(mine, others, first ^ 0x2222u);
    }
    /// Sets dropped P elements to 0.
    template <int k_tiles>
    __device__ __forceinline__ void drop_others(FragmentA (&p)[k_tiles][1]) const {
#pragma unroll
        for (int k = 0; k < k_tiles; ++k)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const std::uint32_t signs = bits_[k % 2] << (7 - k / 2 * 2 - half);
                p[k][0][half] &= select_bytes(signs, 0, 0x9988);
                p[k][0][half + 2] &= select_bytes(signs, 0, 0xbbaa);
            }
    }

  private:
    /// One bit per element in the lane, set if the element is kept. The bit for column tile n, column e (0 or
    /// 1) and row h * 8 (h is 0 or 1) is bit n / 4 * 2 + h in byte n % 2 * 2 + e of bits_[n % 4 / 2].
    std::uint32_t bits_[2];
};

/// The kept elements among 16 keys x `rows` queries. The accumulators' rows are keys.
template <int rows>
class KeptQueries {
    static_assert(rows % 64 == 0);

  public:
    /// (row, key) is the warp's first pair; key is a multiple of 8.
    __device__ __forceinline__ void draw(const HeadDraws& draws, int row, int key) {
        const int lane = lane_index();
#pragma unroll
        for (int part = 0; part < rows / 64; ++part) {
            // Nibble k % 2 * 4 + k / 2 is for key k in each group: its bit 2 g + e is for group g and row 2
            // lane + e.
            std::uint32_t x = 0;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                Philox::Counter counters[2];
#pragma unroll
                for (int g = 0; g < 2; ++g)
                    counters[g] = draws.counter(row + part * 64 + lane * 2 + e, key / 8 + g);
                for_each_pair_of_keys(counters, draws, [&](int g, int w, std::uint32_t bits) {
                    x += bits << (4 * w + 2 * g + e);
                });
            }
            // Each step swaps a bit in the nibble number with a bit in the lane number.
            x = select_bytes(x, __shfl_xor_sync(~0u, x, 4), lane & 4 ? 0x3276 : 0x5410);
            x = select_bytes(x, __shfl_xor_sync(~0u, x, 16), lane & 16 ? 0x3715 : 0x6240);
            const std::uint32_t other = __shfl_xor_sync(~0u, x, 8),
                                own = lane & 8 ? 0xf0f0f0f0u : 0x0f0f0f0fu;
            bits_[part] = (x & own) | ((lane & 8 ? other >> 4 : other << 4) & ~own);
        }
    }
    __device__ __forceinline__ void keep_all() {
#pragma unroll
        for (std::uint32_t& bits : bits_) bits = ~0u;
    }
    /// Whether element e of column tile n is kept.
    __device__ __forceinline__ bool operator()(int n, int e) const {
        return bits_[n / 8] >> (n % 2 * 16 + n % 8 / 2 * 4 + e) & 1u;
    }

  private:
    std::uint32_t bits_[rows / 64];
};

}  // namespace gradtile::attention::cuda::device
