#pragma once
/// What the backward pass needs of each row before its K/V blocks.
#include <cmath>

#include <gradtile/core/cuda/internal/cuda_check.h>
#include <gradtile/attention/cuda/device/head_rows.cuh>
#include <gradtile/core/cuda/device/convert.cuh>

namespace gradtile::attention::cuda::device {

inline constexpr int statistics_threads = 256, statistics_lanes = 16;  // lanes a row

template <class T>
struct RowStatistics {
    using A = Accumulator<T>;
    A* delta;      ///< [B, H, Sq]: D = rowsum(dO * O)
    A* exponent;   ///< [B, H, Sq]: lse * units, and +inf for rows that see nothing: exp(s - inf) = 0 needs no
                   ///< test
    const A* lse;  ///< [B, H, Sq]
    A units;
    HeadRows<const T> o, d_o;
    HeadRows<T> cleared;  ///< gradients that are added to later become 0; data may be null
    int cleared_columns;
    bool vectors;  ///< rows of float32 are 16 bytes apart and long
    std::int64_t rows, queries;
    Sizes sizes;
};

/// Elements c to c + 3 of a row; zeros from `columns` on.
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
    const std::int64_t matrix = row / p.queries, i = row % p.queries;
    A sum = 0;
    if (row < p.rows) {
        const T* const o = p.o.of(matrix / p.sizes.heads, matrix % p.sizes.heads).row(i);
        const T* const d_o = p.d_o.of(matrix / p.sizes.heads, matrix % p.sizes.heads).row(i);
        T* const cleared = p.cleared.of(matrix / p.sizes.heads, matrix % p.sizes.heads).row(i);
        const int columns = p.cleared.data == nullptr ? 0 : p.cleared_columns;
        // Four neighbours a lane in any layout, so that sums do not depend on it.
        for (int c = lane * 4; c < p.sizes.d_v; c += statistics_lanes * 4) {
            const auto x = load_four(o, c, p.sizes.d_v, p.vectors),
                       y = load_four(d_o, c, p.sizes.d_v, p.vectors);
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
    for (int distance = statistics_lanes / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (lane != 0 || row >= p.rows) return;
    const A infinity = static_cast<A>(HUGE_VAL);
    p.delta[row] = sum;
    p.exponent[row] = p.lse[row] == -infinity ? infinity : p.lse[row] * p.units;
}

/// Of o and d_o [B, Sq, H, Dv] in a layout kernels read; units = 1, or log2(e) for exponents in base 2.
/// cleared, if given: a gradient [B, Sq, H, Dqk] that becomes 0.
template <class T>
void launch_row_statistics(const Context& ctx, const Tensor& delta, const Tensor& exponent, const Tensor& lse,
                           double units, const Tensor& o, const Tensor& d_o, const Tensor& cleared = {}) {
    using A = Accumulator<T>;
    const std::int64_t rows = lse.elements();
    if (rows == 0) return;
    const bool clears = cleared.defined();
    const RowStatistics<T> parameters{.delta = delta.data<A>(),
                                      .exponent = exponent.data<A>(),
                                      .lse = lse.data<A>(),
                                      .units = static_cast<A>(units),
                                      .o = head_rows<const T>(o),
                                      .d_o = head_rows<const T>(d_o),
                                      .cleared = clears ? head_rows<T>(cleared) : HeadRows<T>{},
                                      .cleared_columns = clears ? static_cast<int>(cleared.size(3)) : 0,
                                      .vectors = std::is_same_v<T, float> && has_vector_rows(o) &&
                                                 has_vector_rows(d_o) &&
                                                 (!clears || has_vector_rows(cleared)),
                                      .rows = rows,
                                      .queries = lse.size(2),
                                      .sizes = sizes_of(o, o, o)};
    gradtile::cuda::use_device(ctx.device());
    constexpr int rows_per_block = statistics_threads / statistics_lanes;
    row_statistics_kernel<T><<<static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block),
                               statistics_threads, 0, static_cast<cudaStream_t>(ctx.stream())>>>(parameters);
    gradtile::cuda::cuda_check(cudaGetLastError());
}

}  // namespace gradtile::attention::cuda::device
