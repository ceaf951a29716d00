#pragma once
/// Applies the score rule (score_rule.h) in kernels, to single pairs (query, key) and to tensor core
/// accumulators.
#include <gradtile/attention/score_rule.h>
#include <gradtile/attention/cuda/common/shared_tile.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/core/cuda/device/convert.cuh>

namespace gradtile::attention::cuda::device {

/// Branch-free tanh with relative error 2^-21.
__device__ __forceinline__ float tanh_fast(float x) {
    const float y = fabsf(x), square = x * x;
    const float large = 1 - __fdividef(2.0f, power_of_two(y * (2 * log2_e)) + 1);
    // A polynomial in y^2 for tanh(y) / y - 1, interpolated at Chebyshev nodes in [0, 0.64^2].
    float small = -0.00599296125f;
    small = fmaf(small, square, 0.0209241482f);
    small = fmaf(small, square, -0.0538351413f);
    small = fmaf(small, square, 0.133326635f);
    small = fmaf(small, square, -0.333333279f);
    small = fmaf(small * square, y, y);
    return copysignf(y < 0.625f ? small : large, x);
}

/// Fast mathematical functions that ScoreFormula calls for tensor core accumulators.
struct FastMath {
    __device__ __forceinline__ static float tanh(float x) { return tanh_fast(x); }
    __device__ __forceinline__ static float quotient(float x, float y) { return x * (1 / y); }
    __device__ __forceinline__ static float abs(float x) { return fabsf(x); }
};
/// Accurate mathematical functions that ScoreFormula calls for single pairs.
struct PreciseMath {
    template <class A>
    __device__ __forceinline__ static A tanh(A x) {
        return ::tanh(x);
    }
    template <class A>
    __device__ __forceinline__ static A quotient(A x, A y) {
        return x / y;
    }
    __device__ __forceinline__ static int abs(int x) { return ::abs(x); }
};

/// T: the bias dtype if it is not float32.
template <class T, class A>
__device__ __forceinline__ A bias_at(const BiasRows& bias, std::int64_t i, std::int64_t j) {
    return bias.dtype == DType::f32 ? gradtile::cuda::device::convert<A>(bias.element<float>(i, j))
                                    : gradtile::cuda::device::convert<A>(bias.element<T>(i, j));
}

/// Returns the score for query i and key j. Both must exist.
template <class T, class A>
__device__ __forceinline__ Score<A> score_of(const ScoreRule<A>& rule, A product, int i, int j) {
    Score<A> score{product, A(1)};
    if (rule.formula.changes_products())
        score = rule.formula.template transform_product<PreciseMath>(product);
    if (rule.formula.has_distance_terms())
        score.value = rule.formula.template add_distance_terms<PreciseMath>(
            score.value, i + static_cast<int>(rule.offset) - j);
#pragma unroll
    for (int n = static_cast<int>(max_biases) - 1; n >= 0; --n) {
        if (rule.biases[n].data == nullptr) continue;
        const A term = bias_at<T, A>(rule.biases[n], i, j);
        // A -inf bias hides the key even if the product is NaN.
        score.value = term == -static_cast<A>(HUGE_VAL) ? term : score.value + term;
    }
    return score;
}

/// Returns which elements dropout keeps: bit c is set if row i keeps column 8 * group + c.
template <class A>
__device__ __forceinline__ std::uint32_t kept_bits(const ScoreRule<A>& rule, int i, int group) {
    const Philox::Counter words = Philox::draw(rule.counter_of(i, group), rule.key);
    std::uint32_t bits = 0;
#pragma unroll
    for (int c = 0; c < 8; ++c) bits |= std::uint32_t{rule.keeps(words, c)} << c;
    return bits;
}

/// Returns the dropout factor for query i and key j, without the scale for kept elements: 0 or 1.
template <class A>
__device__ __forceinline__ A kept(const ScoreRule<A>& rule, int i, int j) {
    if (!rule.drops()) return 1;
    return kept_bits(rule, i, j / 8) >> j % 8 & 1u ? A(1) : A(0);
}

/// Returns the first bit for group `group` in a word that says which of 32 neighbouring keys a row keeps.
/// Key 8 g + 2 w + h has bit 8 (g / 2) + g % 2 + 2 w + 16 h. The bits have this order because the upper and
/// the lower half of each random word are compared at the same time.
constexpr int kept_bit_of_group(int group) {
    return group / 2 * 8 + group % 2;
}
/// Sets bits[r] to the keys that row rows[r] keeps, from first_key on, which must be divisible by 8. A quad's
/// four lanes must pass the same rows, because each lane makes one of a row's four random draws.
template <int n>
__device__ __forceinline__ void draw_kept_keys(const ScoreRule<float>& rule, const int (&rows)[n],
                                               int first_key, std::uint32_t (&bits)[n]) {
    const int quad_lane = lane_index() % 4;
    Philox::Counter words[n];
#pragma unroll
    for (int r = 0; r < n; ++r) words[r] = rule.counter_of(rows[r], first_key / 8 + quad_lane);
    Philox::draw_together(words, rule.key);
    // min(max(u, t) - t, 1) with t = threshold - 1: 1 if u >= threshold, else 0.
    const std::uint32_t t = (rule.dropout_threshold - 1) * 0x10001u, minus_t = __vneg2(t);
#pragma unroll
    for (int r = 0; r < n; ++r) {
        bits[r] = 0;
#pragma unroll
        for (int w = 3; w >= 0; --w)
            bits[r] = bits[r] * 4 + __viaddmin_u16x2(__vmaxu2(words[r][w], t), minus_t, 0x10001u);
        bits[r] <<= kept_bit_of_group(quad_lane);
    }
#pragma unroll
    for (std::uint32_t& row_bits : bits) {
        row_bits |= __shfl_xor_sync(~0u, row_bits, 1);
        row_bits |= __shfl_xor_sync(~0u, row_bits, 2);
    }
}

/// What accumulator rows are: queries in the forward pass, keys in the backward pass.
enum class RowsAre : std::uint8_t { queries, keys };

/// How add_matrix() may read a matrix. checked: element by element, and tests whether each element exists.
/// all_exist: element by element without the test. pairs: two neighbours in a row at once, which must be
/// adjacent and aligned in memory.
enum class MatrixReads : std::uint8_t { checked, all_exist, pairs };

/// Adds a matrix to accumulators. x is the element that belongs to the warp's first accumulator; rows and
/// columns beyond end_row and end_column do not exist.
template <MatrixReads reads, class B, int m_tiles, int n_tiles>
__device__ __forceinline__ void add_matrix(FragmentC (&c)[m_tiles][n_tiles], const B* x,
                                           std::int64_t row_stride, std::int64_t column_stride, int end_row,
                                           int end_column) {
    const int lane_row = lane_index() / 4, lane_column = lane_index() % 4 * 2;
    x += lane_row * row_stride + lane_column * column_stride;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = m * 16 + half * 8;
            if (reads == MatrixReads::checked && lane_row + row >= end_row) continue;
            const B* const row_ptr = x + row * row_stride;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                float* const pair = &c[m][n][half * 2];
                if constexpr (reads == MatrixReads::pairs) {
                    float2 terms;
                    if constexpr (std::is_same_v<B, float>) {
                        terms = *reinterpret_cast<const float2*>(row_ptr + n * 8);
                    } else {
                        terms = unpack<B>(*reinterpret_cast<const std::uint32_t*>(row_ptr + n * 8));
                    }
                    pair[0] += terms.x;
                    pair[1] += terms.y;
                } else {
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (reads == MatrixReads::all_exist || lane_column + n * 8 + e < end_column)
                            pair[e] +=
                                gradtile::cuda::device::convert<float>(row_ptr[(n * 8 + e) * column_stride]);
                }
            }
        }
}

template <class B, RowsAre rows_are, int m_tiles, int n_tiles>
__device__ __forceinline__ void add_bias(FragmentC (&s)[m_tiles][n_tiles], const BiasRows& bias, int row,
                                         int key, int queries, int keys) {
    const B* const x =
        reinterpret_cast<const B*>(bias.data) + row * bias.row_stride + key * bias.column_stride;
    const bool by_query = rows_are == RowsAre::queries;
    const std::int64_t row_stride = by_query ? bias.row_stride : bias.column_stride,
                       column_stride = by_query ? bias.column_stride : bias.row_stride;
    const int end_row = by_query ? queries - row : keys - key,
              end_column = by_query ? keys - key : queries - row;
    if (end_row < m_tiles * 16 || end_column < n_tiles * 8)
        return add_matrix<MatrixReads::checked>(s, x, row_stride, column_stride, end_row, end_column);
    if constexpr (rows_are == RowsAre::queries) {
        const auto address = reinterpret_cast<std::uintptr_t>(x);
        if (column_stride == 1 && row_stride % 2 == 0 && address % (2 * sizeof(B)) == 0)
            return add_matrix<MatrixReads::pairs>(s, x, row_stride, column_stride, end_row, end_column);
    }
    add_matrix<MatrixReads::all_exist>(s, x, row_stride, column_stride, end_row, end_column);
}

template <RowsAre rows_are, int m_tiles, int n_tiles>
__device__ __forceinline__ void add_distance_terms(FragmentC (&s)[m_tiles][n_tiles],
                                                   const ScoreRule<float>& rule, int row, int key) {
    constexpr int sign = rows_are == RowsAre::queries ? 1 : -1;
    const int from_lane = sign * (lane_index() / 4 - lane_index() % 4 * 2);
    const auto distance = static_cast<float>(row + static_cast<int>(rule.offset) - key + from_lane);
    for_each_element(s, [&](float& score, int m, int n, int e) {
        const int step = sign * (m * 16 + e / 2 * 8 - n * 8 - e % 2);
        score =
            rule.formula.template add_distance_terms<FastMath>(score, distance + static_cast<float>(step));
    });
}

/// Adds the formula's terms and the biases, the last bias first, as score_of() does. (row, key) is the warp's
/// first pair.
template <class T, RowsAre rows_are, int m_tiles, int n_tiles>
__device__ __forceinline__ void add_terms(FragmentC (&s)[m_tiles][n_tiles], const ScoreRule<float>& rule,
                                          int row, int key, int queries, int keys) {
    if (rule.formula.has_distance_terms()) add_distance_terms<rows_are>(s, rule, row, key);
#pragma unroll 1
    for (int n = static_cast<int>(max_biases) - 1; n >= 0; --n) {
        const BiasRows& bias = rule.biases[n];
        if (bias.data == nullptr) continue;
        if (bias.dtype == DType::f32) {
            add_bias<float, rows_are>(s, bias, row, key, queries, keys);
        } else {
            add_bias<T, rows_are>(s, bias, row, key, queries, keys);
        }
    }
}

/// Applies the formula's product function. Writes the derivatives to `derivatives` unless it is null.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void apply_to_products(FragmentC (&s)[m_tiles][n_tiles],
                                                  const ScoreFormula<float> formula,
                                                  FragmentC (*derivatives)[n_tiles] = nullptr) {
    for_each_element(s, [&](float& element, int m, int n, int e) {
        const Score<float> score = formula.template transform_product<FastMath>(element);
        element = score.value;
        if (derivatives != nullptr) derivatives[m][n][e] = score.derivative;
    });
}
/// Like apply_to_products() if the formula changes products. Otherwise only sets all derivatives to 1.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void differentiate_products(FragmentC (&s)[m_tiles][n_tiles],
                                                       FragmentC (&derivatives)[m_tiles][n_tiles],
                                                       const ScoreRule<float>& rule) {
    if (rule.formula.changes_products()) {
        apply_to_products(s, rule.formula, derivatives);
    } else {
        for_each_element(derivatives, [](float& derivative, int, int, int) { derivative = 1; });
    }
}

/// Turns products into scores. The accumulators' rows are queries.
template <class T, int m_tiles, int n_tiles>
__device__ __forceinline__ void apply_rule(FragmentC (&s)[m_tiles][n_tiles], const ScoreRule<float>& rule,
                                           int row, int key, int queries, int keys) {
    if (rule.formula.changes_products()) apply_to_products(s, rule.formula);
    add_terms<T, RowsAre::queries>(s, rule, row, key, queries, keys);
}

/// Sets dropped elements to 0. The accumulators' rows are queries.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void drop(FragmentC (&p)[m_tiles][n_tiles], const ScoreRule<float>& rule, int row,
                                     int key) {
    if (!rule.drops()) return;
    const int lane = lane_index();
    int rows[2 * m_tiles];
#pragma unroll
    for (int r = 0; r < 2 * m_tiles; ++r) rows[r] = row + r * 8 + lane / 4;
#pragma unroll
    for (int n = 0; n < n_tiles; n += 4) {
        std::uint32_t bits[2 * m_tiles];
        draw_kept_keys(rule, rows, key + n * 8, bits);
#pragma unroll
        for (int r = 0; r < 2 * m_tiles; ++r) {
            const std::uint32_t lane_bits = bits[r] >> lane % 4 * 2;
#pragma unroll
            for (int c = 0; c < 8 && n + c / 2 < n_tiles; ++c)
                if ((lane_bits >> (kept_bit_of_group(c / 2) + c % 2 * 16) & 1u) == 0)
                    p[r / 2][n + c / 2][r % 2 * 2 + c % 2] = 0;
        }
    }
}

/// Says which elements in a lane's accumulators dropout keeps. Accumulator rows are keys. Accumulator columns
/// are queries, in `tiles` tiles with eight columns each.
template <int tiles>
class KeptOfColumns {
  public:
    /// (row, first_key) is the warp's first pair.
    __device__ __forceinline__ KeptOfColumns(const ScoreRule<float>& rule, int row, int first_key) {
        const int lane = lane_index();
        int rows[tiles];
        std::uint32_t drawn[tiles];
#pragma unroll
        for (int n = 0; n < tiles; ++n) rows[n] = row + n * 8 + lane / 4;
        draw_kept_keys(rule, rows, first_key, drawn);
        const int key_in_group = lane / 4, shift = key_in_group / 2 * 2 + key_in_group % 2 * 16;
#pragma unroll
        for (int n = 0; n < tiles; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                bits_[n][e] = __shfl_sync(~0u, drawn[n], lane % 4 * 8 + e * 4) >> shift;
    }
    /// Returns whether element e in the lane's fragment for row tile m and column tile n is kept.
    __device__ __forceinline__ bool operator()(int m, int n, int e) const {
        return bits_[n][e % 2] >> kept_bit_of_group(m * 2 + e / 2) & 1u;
    }

  private:
    std::uint32_t bits_[tiles][2];
};

/// A bias with one number per key, in shared memory. Rows are 16-byte aligned, and the key count is divisible
/// by 8.
template <int tile_keys>
struct KeyBiasTile {
    static constexpr int bytes = 4 * tile_keys;
    std::uint32_t address;

    /// Starts to copy the bias for the keys from `key` on. `thread` counts the calling threads from 0.
    __device__ __forceinline__ void load_async(const BiasRows& bias, int key, int end_key, int thread) const {
        const int element_bytes = static_cast<int>(size_of(bias.dtype)),
                  in_tile = thread * 16 / element_bytes;
        if (bias.data == nullptr || in_tile >= tile_keys) return;
        copy_16_bytes_async(address + thread * 16, bias.data + (key + in_tile) * element_bytes,
                            key + in_tile < end_key);
    }
    /// Returns the bias for keys in_tile and in_tile + 1. T: the bias dtype if it is not float32.
    template <class T>
    __device__ __forceinline__ float2 pair(DType dtype, int in_tile) const {
        float2 two;
        if (dtype == DType::f32) {
            asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                         : "=f"(two.x), "=f"(two.y)
                         : "r"(address + in_tile * 4)
                         : "memory");
            return two;
        }
        std::uint32_t packed;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(packed) : "r"(address + in_tile * 2) : "memory");
        return unpack<T>(packed);
    }
};

/// s = factor * s + a bias tile. The accumulators' rows are queries; `tile` points to the warp's part.
template <class T, class BiasTile, int m_tiles, int n_tiles>
__device__ __forceinline__ void add_bias_tile(FragmentC (&s)[m_tiles][n_tiles], float factor,
                                              const LanePointer<BiasTile>& tile) {
#pragma unroll
    for (int n = 0; n < n_tiles; n += 2)
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
            std::uint32_t matrices[4];
            load_matrices<false>(matrices, tile.at(m * 16, n * 8));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 terms = unpack<T>(matrices[i]);
                float* const pair = &s[m][n + i / 2][i % 2 * 2];
                pair[0] = fmaf(pair[0], factor, terms.x);
                pair[1] = fmaf(pair[1], factor, terms.y);
            }
        }
}
/// s = factor * s + the key bias. The warp's first column is key `in_tile`.
template <class T, int tile_keys, int m_tiles, int n_tiles>
__device__ __forceinline__ void add_key_bias(FragmentC (&s)[m_tiles][n_tiles], float factor,
                                             const KeyBiasTile<tile_keys>& tile, DType dtype, int in_tile) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
        const float2 terms = tile.template pair<T>(dtype, in_tile + n * 8 + lane_index() % 4 * 2);
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[m][n][e] = fmaf(s[m][n][e], factor, e % 2 == 0 ? terms.x : terms.y);
    }
}

/// One head's rule in shared memory, because it would take too many registers.
struct SharedRule {
    alignas(8) unsigned char bytes[sizeof(ScoreRule<float>)];

    /// Stores the rule. One thread calls this function, and a barrier must follow.
    __device__ __forceinline__ void set(const ScoreRule<float>& rule) {
        *reinterpret_cast<ScoreRule<float>*>(bytes) = rule;
    }
    __device__ __forceinline__ const ScoreRule<float>& get() const {
        return *reinterpret_cast<const ScoreRule<float>*>(bytes);
    }
};

}  // namespace gradtile::attention::cuda::device
