#pragma once
/// What the backward pass needs of each row before its K/V blocks.
#include <cmath>

#include <gradtile/core/cuda_check.h>
#include <gradtile/attention/device/head_rows.cuh>
#include <gradtile/core/device/convert.cuh>

namespace gradtile::attention::cuda::device {

inline constexpr int statistics_threads = 256;  // a warp a row

/// delta [B, H, Sq] = D = rowsum(dO * O). exponent [B, H, Sq] = lse * units, and +inf for rows that see
/// nothing, so that exp(s - inf) = 0 there without a test.
template <class T>
__global__ void row_statistics_kernel(Accumulator<T>* delta, Accumulator<T>* exponent,
                                      const Accumulator<T>* lse, Accumulator<T> units, HeadRows<const T> o,
                                      HeadRows<const T> d_o, std::int64_t rows, std::int64_t queries,
                                      Sizes sizes) {
    using A = Accumulator<T>;
    const std::int64_t row = (std::int64_t{blockIdx.x} * statistics_threads + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    const std::int64_t matrix = row / queries, i = row % queries;
    const T* const o_row = o.of(matrix / sizes.heads, matrix % sizes.heads).row(i);
    const T* const d_o_row = d_o.of(matrix / sizes.heads, matrix % sizes.heads).row(i);
    A sum = 0;
    for (int c = lane; c < sizes.d_v; c += 32)
        sum += gradtile::cuda::device::convert<A>(d_o_row[c]) * gradtile::cuda::device::convert<A>(o_row[c]);
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (lane != 0) return;
    const A infinity = static_cast<A>(HUGE_VAL);
    delta[row] = sum;
    exponent[row] = lse[row] == -infinity ? infinity : lse[row] * units;
}

/// Of o and d_o [B, Sq, H, Dv] in a layout kernels read; units = 1, or log2(e) for exponents in base 2.
template <class T>
void launch_row_statistics(const Context& ctx, const Tensor& delta, const Tensor& exponent, const Tensor& lse,
                           double units, const Tensor& o, const Tensor& d_o) {
    using A = Accumulator<T>;
    const std::int64_t rows = lse.elements();
    if (rows == 0) return;
    gradtile::cuda::use_device(ctx.device());
    constexpr int rows_per_block = statistics_threads / 32;
    row_statistics_kernel<T><<<static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block),
                               statistics_threads, 0, static_cast<cudaStream_t>(ctx.stream())>>>(
        delta.data<A>(), exponent.data<A>(), lse.data<A>(), static_cast<A>(units), head_rows<const T>(o),
        head_rows<const T>(d_o), rows, lse.size(2), sizes_of(o, o, o));
    gradtile::cuda::cuda_check(cudaGetLastError());
}

}  // namespace gradtile::attention::cuda::device
