#pragma once
/// Row ranges (row_ranges.h) in kernels: the search for blocks that rows see, and the test of single pairs.
#include <gradtile/attention/cuda/common/row_ranges.h>
#include <gradtile/attention/cuda/common/mma.cuh>

namespace gradtile::attention::cuda::device {

/// Returns the first key block in [block, end_block) that a row in [row, end_row) may see; end_block if there
/// is none. All lanes of a warp must call this function with the same arguments.
__device__ __forceinline__ int next_seen_block(const KeyBlockRows* blocks, int block, int end_block, int row,
                                               int end_row) {
    for (; block < end_block; block += 32) {
        const int own = block + lane_index();
        const unsigned seen = __ballot_sync(~0u, own < end_block && blocks[own].see_some(row, end_row));
        if (seen != 0) return block + __ffs(static_cast<int>(seen)) - 1;
    }
    return end_block;
}
/// Returns the last key block in [begin_block, block] that a row may see; begin_block - 1 if there is none.
__device__ __forceinline__ int previous_seen_block(const KeyBlockRows* blocks, int block, int begin_block,
                                                   int row, int end_row) {
    for (; block >= begin_block; block -= 32) {
        const int own = block - lane_index();
        const unsigned seen = __ballot_sync(~0u, own >= begin_block && blocks[own].see_some(row, end_row));
        if (seen != 0) return block + 1 - __ffs(static_cast<int>(seen));
    }
    return begin_block - 1;
}

/// Which pairs of 16 m_tiles queries and 8 n_tiles keys row ranges allow. The accumulators' rows are queries.
/// Each lane computes the bits of some keys, and shuffles bring them to the lanes that hold their scores.
/// This takes fewer registers than a test of each score.
template <int m_tiles, int n_tiles>
class SeenPairs {
    static_assert(m_tiles <= 2);
    static constexpr int keys_per_word = 2 / m_tiles, words = 8 * n_tiles / keys_per_word;

  public:
    /// `keys` points to the first key, `row` is the warp's first row. All lanes must call this function.
    __device__ __forceinline__ void load(const KeyRows* keys, int row) {
#pragma unroll
        for (int i = 0; i < (words + 31) / 32; ++i) {
            const int word = i * 32 + lane_index();
            bits_[i] = 0;
            if (words % 32 != 0 && word >= words) continue;
#pragma unroll
            for (int k = 0; k < keys_per_word; ++k)
                bits_[i] |= row_bits<16 * m_tiles>(keys[word * keys_per_word + k], row) << 16 * k;
        }
    }
    /// Sets S = -inf for the other pairs.
    __device__ __forceinline__ void hide_others(FragmentC (&s)[m_tiles][n_tiles]) const {
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int k = 0; k < 2 / keys_per_word; ++k) {
                const int first_word = n * 8 / keys_per_word;
                const std::uint32_t bits =
                    __shfl_sync(~0u, bits_[first_word / 32],
                                first_word % 32 + lane_index() % 4 * 2 / keys_per_word + k) >>
                    lane_index() / 4;
#pragma unroll
                for (int m = 0; m < m_tiles; ++m)
#pragma unroll
                    for (int e = k; e < k + keys_per_word; ++e)
#pragma unroll
                        for (int half = 0; half < 2; ++half)
                            if ((bits >> ((e - k) * 16 + m * 16 + half * 8) & 1u) == 0)
                                s[m][n][half * 2 + e] = -INFINITY;
            }
    }

  private:
    std::uint32_t bits_[(words + 31) / 32];
};
/// Sets S = -inf for the pairs that row ranges hide. `keys` points to the first key, `row` is the warp's
/// first row.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void hide_unseen_pairs(FragmentC (&s)[m_tiles][n_tiles], const KeyRows* keys,
                                                  int row) {
    SeenPairs<m_tiles, n_tiles> pairs;
    pairs.load(keys, row);
    pairs.hide_others(s);
}

/// Sets S = -inf or P = 0, `unseen`, where a row is not in a key's ranges. The accumulators' rows are keys;
/// `keys` points to the warp's first key, and `row` is its first row.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void mask_transposed_by_ranges(FragmentC (&x)[m_tiles][n_tiles], float unseen,
                                                          const KeyRows* keys, int row) {
    const int lane_row = row + lane_index() % 4 * 2;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const KeyRows rows = keys[m * 16 + half * 8 + lane_index() / 4];
            if (__all_sync(~0u, rows.contain_all(row, row + n_tiles * 8))) continue;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (!rows.contain(lane_row + n * 8 + e)) x[m][n][half * 2 + e] = unseen;
        }
}

}  // namespace gradtile::attention::cuda::device
