#pragma once
/// The rule of score_rule.h in kernels: for single pairs, and for the accumulators of tensor cores.
#include <gradtile/attention/score_rule.h>
#include <gradtile/attention/cuda/device/mma.cuh>
#include <gradtile/core/cuda/device/convert.cuh>

namespace gradtile::attention::cuda::device {

/// A score, and its derivative with respect to the product.
template <class A>
struct Score {
    A value, derivative;
};

/// T is the dtype of biases that are not float32.
template <class T, class A>
__device__ __forceinline__ A bias_at(const BiasRows& bias, std::int64_t i, std::int64_t j) {
    return bias.dtype == DType::f32 ? gradtile::cuda::device::convert<A>(bias.element<float>(i, j))
                                    : gradtile::cuda::device::convert<A>(bias.element<T>(i, j));
}

/// The score of query i and key j, which must exist.
template <class T, class A>
__device__ __forceinline__ Score<A> score_of(const ScoreRule<A>& rule, A product, int i, int j) {
    Score<A> score{product, A(1)};
    if (rule.softcap != 0) {
        const A t = tanh(product / rule.softcap);
        score = {rule.softcap * t, (1 - t) * (1 + t)};
    }
    if (rule.alibi_slope != 0) {
        const int distance = i + static_cast<int>(rule.offset) - j;
        score.value -= rule.alibi_slope * static_cast<A>(abs(distance));
    }
#pragma unroll
    for (const BiasRows& bias : rule.biases)
        if (bias.data != nullptr) score.value += bias_at<T, A>(bias, i, j);
    return score;
}

/// Bit c is set if column 8 * group + c of row i is kept.
template <class A>
__device__ __forceinline__ std::uint32_t kept_bits(const ScoreRule<A>& rule, int i, int group) {
    const Philox::Counter words = Philox::draw(
        {static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(i), rule.head, rule.sample}, rule.key);
    std::uint32_t bits = 0;
#pragma unroll
    for (int c = 0; c < 8; ++c)
        bits |= std::uint32_t{(words[c / 2] >> 16 * (c % 2) & 0xffffu) >= rule.dropout_threshold} << c;
    return bits;
}

/// Dropout's factor of query i and key j without the scale of kept elements: 0 or 1.
template <class A>
__device__ __forceinline__ A kept(const ScoreRule<A>& rule, int i, int j) {
    if (rule.dropout_threshold == 0) return 1;
    return kept_bits(rule, i, j / 8) >> j % 8 & 1u ? A(1) : A(0);
}

/// Bit c is set if column first_key + c of row i is kept, for 32 columns; first_key is a multiple of 8. The
/// four lanes of a quad must pass the same row: each of them makes one of the four draws.
__device__ __forceinline__ std::uint32_t kept_keys(const ScoreRule<float>& rule, int i, int first_key) {
    const int quad_lane = lane_index() % 4;
    std::uint32_t bits = kept_bits(rule, i, first_key / 8 + quad_lane) << 8 * quad_lane;
    bits |= __shfl_xor_sync(~0u, bits, 1);
    return bits | __shfl_xor_sync(~0u, bits, 2);
}

/// Calls f(element, query, key) for every element of accumulators whose rows are queries; (row, key) is the
/// warp's first pair.
template <int m_tiles, int n_tiles, class F>
__device__ __forceinline__ void for_each_pair(FragmentC (&c)[m_tiles][n_tiles], int row, int key, F&& f) {
    row += lane_index() / 4;
    key += lane_index() % 4 * 2;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) f(c[m][n][e], row + m * 16 + e / 2 * 8, key + n * 8 + e % 2);
}

/// Turns products into scores. The accumulators' rows are queries.
template <class T, int m_tiles, int n_tiles>
__device__ __forceinline__ void apply_rule(FragmentC (&s)[m_tiles][n_tiles], const ScoreRule<float>& rule,
                                           int row, int key, int queries, int keys) {
    for_each_pair(s, row, key, [&](float& element, int i, int j) {
        if (i < queries && j < keys) element = score_of<T>(rule, element, i, j).value;
    });
}

/// Sets dropped elements to 0. The accumulators' rows are queries.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void drop(FragmentC (&p)[m_tiles][n_tiles], const ScoreRule<float>& rule, int row,
                                     int key) {
    static_assert(n_tiles % 4 == 0);
    if (rule.dropout_threshold == 0) return;
    const int lane = lane_index();
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < n_tiles; n += 4) {
                const std::uint32_t bits =
                    kept_keys(rule, row + m * 16 + half * 8 + lane / 4, key + n * 8) >> lane % 4 * 2;
#pragma unroll
                for (int c = 0; c < 8; ++c)
                    if ((bits >> (c / 2 * 8 + c % 2) & 1u) == 0) p[m][n + c / 2][half * 2 + c % 2] = 0;
            }
}

/// For accumulators whose rows are keys and whose columns are queries: the bits of kept_keys() of the two
/// queries that a lane holds of a tile of eight; `row` is the tile's first query.
struct KeptOfColumns {
    std::uint32_t bits[2] = {~0u, ~0u};

    __device__ __forceinline__ KeptOfColumns(const ScoreRule<float>& rule, int row, int first_key) {
        if (rule.dropout_threshold == 0) return;
        const int lane = lane_index();
        const std::uint32_t drawn = kept_keys(rule, row + lane / 4, first_key);
        bits[0] = __shfl_sync(~0u, drawn, lane % 4 * 8);
        bits[1] = __shfl_sync(~0u, drawn, lane % 4 * 8 + 4);
    }
    /// Whether element e of the lane's fragment in row tile m is kept.
    __device__ __forceinline__ bool operator()(int m, int e) const {
        return bits[e % 2] >> (m * 16 + e / 2 * 8 + lane_index() / 4) & 1u;
    }
};

/// Shared memory for the rule of one head, which takes too many registers.
struct SharedRule {
    alignas(8) unsigned char bytes[sizeof(ScoreRule<float>)];

    /// One thread calls; a barrier must follow.
    __device__ __forceinline__ void set(const ScoreRule<float>& rule) {
        *reinterpret_cast<ScoreRule<float>*>(bytes) = rule;
    }
    __device__ __forceinline__ const ScoreRule<float>& get() const {
        return *reinterpret_cast<const ScoreRule<float>*>(bytes);
    }
};

}  // namespace gradtile::attention::cuda::device
