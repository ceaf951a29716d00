#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. The matrix product for the float32
/// kernels, which keeps its sums in registers, and the loads and stores that transpose its operands. V is a
/// vector type, for example Avx512. T is the type of the call's tensors; the loads and stores convert it.
#include <cstddef>
#include <cstdint>

#include <gradtile/attention/cpu/index_math.h>
#include <gradtile/attention/cpu/kernels.h>

namespace gradtile::attention::cpu {
namespace {

/// Tokens in a transposed tile [.., tile_tokens]: neighbouring tokens are in neighbouring vector lanes.
constexpr std::int64_t tile_tokens = 64;
/// Partly masked blocks are computed in strips of this many tokens, so that few invisible pairs are computed.
constexpr std::int64_t strip_tokens = 16;

inline bool is_empty(IndexRange range) {
    return range.end <= range.begin;
}

/// How many tiles cover `tokens`.
inline std::int64_t tile_count(IndexRange tokens) {
    return (tokens.end - tokens.begin + tile_tokens - 1) / tile_tokens;
}
/// Tile t's tokens; the last tile may be shorter.
inline IndexRange tile_range(IndexRange tokens, std::int64_t t) {
    const std::int64_t begin = tokens.begin + t * tile_tokens;
    return {begin, smaller(begin + tile_tokens, tokens.end)};
}

/// Allocates float arrays, aligned to 64 bytes, from a task's scratch memory. If the pointer to the memory is
/// null, the class only counts bytes.
class ScratchFloats {
  public:
    explicit ScratchFloats(std::byte* base) : base_(base) {}
    float* take(std::int64_t count) {
        float* const taken = base_ == nullptr ? nullptr : reinterpret_cast<float*>(base_ + bytes_);
        bytes_ += static_cast<std::size_t>(round_up(count, 16)) * sizeof(float);
        return taken;
    }
    std::size_t bytes() const { return bytes_; }

  private:
    std::byte* base_;
    std::size_t bytes_ = 0;
};

/// A product's left operand, which is read one element at a time: element (r, k) is data[r * row_step + k *
/// depth_step].
struct Scalars {
    const float* data;
    std::int64_t row_step;
    std::int64_t depth_step;
};
/// A product's right operand, which is read in vectors: element (k, c) is data[k * depth_step + c].
struct Vectors {
    const float* data;
    std::int64_t depth_step;
};

/// Computes R rows x C vectors of a * b with all sums in registers, then calls epilogue(row, vector, sum) for
/// each sum.
template <class V, int R, int C, class Epilogue>
[[gnu::always_inline]] inline void multiply_tile(std::int64_t depth, Scalars a, Vectors b, std::int64_t row,
                                                 std::int64_t vector, Epilogue epilogue) {
    typename V::Vector sum[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sum[r][c] = V::zero();
    const float* left = a.data + row * a.row_step;
    const float* right = b.data + vector * V::lanes;
    for (std::int64_t k = 0; k < depth; ++k) {
        typename V::Vector operand[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) operand[c] = V::load(right + c * V::lanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const typename V::Vector factor = V::broadcast(left[r * a.row_step]);
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) sum[r][c] = V::fma(factor, operand[c], sum[r][c]);
        }
        left += a.depth_step;
        right += b.depth_step;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) epilogue(row + r, vector + c, sum[r][c]);
}

template <class V, int C, class Epilogue>
[[gnu::noinline]] void multiply_columns(std::int64_t rows, std::int64_t depth, Scalars a, Vectors b,
                                        std::int64_t vector, Epilogue epilogue) {
    std::int64_t row = 0;
    for (; row + V::tile_rows <= rows; row += V::tile_rows)
        multiply_tile<V, V::tile_rows, C>(depth, a, b, row, vector, epilogue);
    if (rows - row >= 4) {
        multiply_tile<V, 4, C>(depth, a, b, row, vector, epilogue);
        row += 4;
    }
    if (rows - row >= 2) {
        multiply_tile<V, 2, C>(depth, a, b, row, vector, epilogue);
        row += 2;
    }
    if (rows - row >= 1) multiply_tile<V, 1, C>(depth, a, b, row, vector, epilogue);
}

/// Computes rows 0 .. rows - 1 of a * b, in those columns that the SIMD vectors `vectors` hold. Calls
/// epilogue(r, c, sum) for vector c of row r. An epilogue should capture by value, so that the pointers it
/// captured stay in registers while it stores.
template <class V, class Epilogue>
void multiply(std::int64_t rows, IndexRange vectors, std::int64_t depth, Scalars a, Vectors b,
              Epilogue epilogue) {
    std::int64_t c = vectors.begin;
    for (; c + V::tile_vectors <= vectors.end; c += V::tile_vectors)
        multiply_columns<V, V::tile_vectors>(rows, depth, a, b, c, epilogue);
    const std::int64_t left = vectors.end - c;
    if constexpr (V::tile_vectors > 2) {
        if (left == 3) multiply_columns<V, 3>(rows, depth, a, b, c, epilogue);
        if (left == 2) multiply_columns<V, 2>(rows, depth, a, b, c, epilogue);
    }
    if (left == 1) multiply_columns<V, 1>(rows, depth, a, b, c, epilogue);
}

/// tile [d, tile_tokens] = factor * x^T for the given tokens; the remaining columns become 0.
template <class V, class T>
void load_transposed(StridedRows<const T> x, IndexRange tokens, std::int64_t d, float factor, float* tile) {
    const typename V::Vector factors = V::broadcast(factor);
    for (std::int64_t token = 0; token < tile_tokens; token += V::lanes)
        for (std::int64_t column = 0; column < d; column += V::lanes) {
            typename V::Vector square[V::lanes];
            const std::int64_t width = smaller(V::lanes, d - column);
#pragma GCC unroll 16
            for (int r = 0; r < V::lanes; ++r) {
                const std::int64_t i = tokens.begin + token + r;
                square[r] = i < tokens.end ? V::load_first(x.row(i) + column, width) : V::zero();
            }
            V::transpose(square);
            for (int c = 0; c < width; ++c)
                V::store(tile + (column + c) * tile_tokens + token, V::mul(factors, square[c]));
        }
}

/// Stores the first n lanes.
template <class V, class T>
void store_first(T* p, typename V::Vector x, std::int64_t n) {
    if constexpr (std::is_same_v<T, float>) return V::store_first(p, x, n);
    float elements[V::lanes];
    V::store(elements, x);
    for (std::int64_t i = 0; i < smaller(n, V::lanes); ++i) p[i] = convert<T>(elements[i]);
}

/// Transposes tile [d, tile_tokens] into rows of x, and multiplies token t's row by factors[t].
template <class V, class T>
void store_transposed(const float* tile, const float* factors, IndexRange tokens, std::int64_t d,
                      StridedRows<T> x) {
    for (std::int64_t token = 0; tokens.begin + token < tokens.end; token += V::lanes) {
        const typename V::Vector factor = V::load(factors + token);
        for (std::int64_t column = 0; column < d; column += V::lanes) {
            typename V::Vector square[V::lanes];
            const std::int64_t width = smaller(V::lanes, d - column);
#pragma GCC unroll 16
            for (int c = 0; c < V::lanes; ++c)
                square[c] = c < width ? V::mul(factor, V::load(tile + (column + c) * tile_tokens + token))
                                      : V::zero();
            V::transpose(square);
#pragma GCC unroll 16
            for (int r = 0; r < V::lanes; ++r) {
                const std::int64_t i = tokens.begin + token + r;
                if (i < tokens.end) store_first<V>(x.row(i) + column, square[r], width);
            }
        }
    }
}

/// Copies rows of x to tile [tokens, padded] and pads them with zeros. The copy makes the following products
/// faster, because they read columns. In x a head's rows are a whole model width apart, so a column would
/// occupy only a few cache sets.
template <class V, class T>
void load_rows(StridedRows<const T> x, IndexRange tokens, std::int64_t d, std::int64_t padded, float* tile) {
    for (std::int64_t i = tokens.begin; i < tokens.end; ++i, tile += padded)
        for (std::int64_t column = 0; column < padded; column += V::lanes)
            V::store(tile + column, V::load_first(x.row(i) + column, larger(0, d - column)));
}

/// Returns the vectors of a transposed tile that hold the given tokens. Token 0 is the tile's first token.
template <class V>
IndexRange vectors_of(IndexRange tokens) {
    return {tokens.begin / V::lanes, (tokens.end + V::lanes - 1) / V::lanes};
}

}  // namespace
}  // namespace gradtile::attention::cpu
