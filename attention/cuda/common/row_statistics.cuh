#pragma once
/// Computes the two numbers per row that the backward pass needs before its loop over K/V blocks: D and the
/// scaled LSE.
#include <cmath>

#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>

namespace gradtile::attention::cuda::device {

inline constexpr int statistics_threads = 256, statistics_lanes = 16;  // lanes per row

template <class T>
struct RowStatistics {
    using A = Accumulator<T>;
    A* delta;        ///< [B, H, Sq]: delta_factor * D, where D = rowsum(dO * O) - dLSE
    A* scaled_lse;   ///< [B, H, Sq]: lse * lse_factor; +inf for rows that see no key, since exp(s - inf) = 0
    const A* lse;    ///< [B, H, Sq]
    const A* d_lse;  ///< [B, H, Sq]; null if dLSE is 0
    A lse_factor, delta_factor;
    int* has_large_lse;  ///< set if an LSE is large; may be null
    TensorView<const T> o, d_o;
    /// a gradient that is set to 0, because kernels add to it later; data may be null
    TensorView<T> cleared;
    int cleared_columns;
    bool vectors;  ///< T is float, and has_vector_rows() holds for all tensors
    std::int64_t rows, queries;
    Sizes sizes;
};

/// A row's elements c to c + 3; elements from `columns` on are 0.
template <class T>
struct Four {
    Accumulator<T> e[4];
};
template <class T>
__device__ __forceinline__ Four<T> load_four(const T* row, int c, int columns, bool vectors) {
    if constexpr (std::is_same_v<T, float>) {
        if (vectors) {
            const float4 four = *reinterpret_cast<const float4*>(row + c);
            return {{four.x, four.y, four.z, four.w}};
        }
    }
    Four<T> four;
    for (int i = 0; i < 4; ++i)
        four.e[i] = c + i < columns ? gradtile::cuda::device::convert<Accumulator<T>>(row[c + i]) : 0;
    return four;
}

template <class T>
__global__ void __launch_bounds__(statistics_threads)
    row_statistics_kernel(const __grid_constant__ RowStatistics<T> p) {
    using A = Accumulator<T>;
    const std::int64_t index = std::int64_t{blockIdx.x} * statistics_threads + threadIdx.x;
    const std::int64_t row = index / statistics_lanes;
    const int lane = static_cast<int>(index % statistics_lanes);
    const std::int64_t batch_head = row / p.queries, i = row % p.queries;
    A sum = 0;
    if (row < p.rows) {
        const std::int64_t batch = batch_head / p.sizes.heads, head = batch_head % p.sizes.heads;
        const T* const o = p.o.head(batch, head).row(i);
        const T* const d_o = p.d_o.head(batch, head).row(i);
        T* const cleared = p.cleared.head(batch, head).row(i);
        const int columns = p.cleared.data == nullptr ? 0 : p.cleared_columns;
        // In every layout each lane takes four adjacent elements, so that the order of additions does not
        // depend on the layout.
        for (int c = lane * 4; c < p.sizes.v_dim; c += statistics_lanes * 4) {
            const auto x = load_four(o, c, p.sizes.v_dim, p.vectors),
                       y = load_four(d_o, c, p.sizes.v_dim, p.vectors);
            sum += x.e[0] * y.e[0] + x.e[1] * y.e[1] + (x.e[2] * y.e[2] + x.e[3] * y.e[3]);
        }
        for (int c = lane * 4; c < columns; c += statistics_lanes * 4) {
            if (p.vectors) {
                *reinterpret_cast<float4*>(cleared + c) = float4{};
            } else {
                for (int e = c; e < min(c + 4, columns); ++e) cleared[e] = T{};
            }
        }
    }
    sum = reduce_lanes<statistics_lanes>(sum, Sum{});
    if (lane != 0 || row >= p.rows) return;
    const A infinity = static_cast<A>(HUGE_VAL);
    const bool sees_keys = p.lse[row] != -infinity;
    if (p.d_lse != nullptr && sees_keys) sum -= p.d_lse[row];
    p.delta[row] = sum * p.delta_factor;
    if (p.has_large_lse != nullptr && sees_keys && is_large(static_cast<float>(p.lse[row])))
        *p.has_large_lse = 1;
    p.scaled_lse[row] = sees_keys ? p.lse[row] * p.lse_factor : infinity;
}

/// Computes delta and scaled_lse [B, H, Sq] from o and d_o [B, Sq, H, Dv], whose layouts kernels must be able
/// to read. Sets `cleared`, a gradient [B, Sq, H, Dqk], to 0 if it is given. lse_factor is log2(e) for
/// exponents in base 2, else 1. d_lse [B, H, Sq] is contiguous or undefined; delta_factor multiplies D.
template <class T>
void launch_row_statistics(const Context& ctx, const Tensor& delta, const Tensor& scaled_lse,
                           const Tensor& lse, double lse_factor, const Tensor& o, const Tensor& d_o,
                           const Tensor& cleared, const Tensor& d_lse, double delta_factor,
                           int* has_large_lse = nullptr) {
    using A = Accumulator<T>;
    const std::int64_t rows = lse.elements();
    if (rows == 0) return;
    const bool clears = cleared.defined();
    const RowStatistics<T> parameters{.delta = delta.data<A>(),
                                      .scaled_lse = scaled_lse.data<A>(),
                                      .lse = lse.data<A>(),
                                      .d_lse = data_or_null<A>(d_lse),
                                      .lse_factor = static_cast<A>(lse_factor),
                                      .delta_factor = static_cast<A>(delta_factor),
                                      .has_large_lse = has_large_lse,
                                      .o = tensor_view<const T>(o),
                                      .d_o = tensor_view<const T>(d_o),
                                      .cleared = clears ? tensor_view<T>(cleared) : TensorView<T>{},
                                      .cleared_columns = clears ? static_cast<int>(cleared.size(3)) : 0,
                                      .vectors = std::is_same_v<T, float> && has_vector_rows(o) &&
                                                 has_vector_rows(d_o) &&
                                                 (!clears || has_vector_rows(cleared)),
                                      .rows = rows,
                                      .queries = lse.size(2),
                                      .sizes = sizes_of(o, o, o)};
    constexpr int rows_per_block = statistics_threads / statistics_lanes;
    gradtile::cuda::launch(ctx, row_statistics_kernel<T>, gradtile::cuda::blocks_for(rows, rows_per_block),
                           {.threads = statistics_threads}, parameters);
}

}  // namespace gradtile::attention::cuda::device
