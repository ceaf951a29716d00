#pragma once
/// Sums the columns of a matrix that a kernel reads or computes. A block sums 128 rows; a second kernel adds
/// these partial sums.
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/device/partial_sums.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace device {

constexpr int sum_columns_wide = 32;  // groups of n columns per block
constexpr int sum_lanes = 4;          // threads per column; each thread sums every fourth row
constexpr int sum_fetches = 8;        // vectors that a thread loads at the same time

/// parts[block] = column sums over column_sum_rows rows, with n columns per thread. source.read(row, column)
/// loads n elements from each of Source::inputs matrices. source.finish(values, fetched, row, column)
/// computes the values to be summed from them. Source::blocks is the minimum number of blocks per
/// multiprocessor; without this minimum, the compiler uses fewer registers, so that fewer loads overlap
/// (GELU's backward pass took 399 us instead of 313 us).
template <int n, class S, class Source>
__global__ void __launch_bounds__(sum_columns_wide* sum_lanes, Source::blocks)
    column_sums_kernel(S* parts, const Source source, std::int64_t rows, std::int64_t columns,
                       unsigned column_blocks) {
    constexpr int unroll = sum_fetches / Source::inputs;  // rows
    __shared__ S shared[sum_lanes][sum_columns_wide][n];
    await_predecessor();
    const int lane_x = threadIdx.x % sum_columns_wide, lane_y = threadIdx.x / sum_columns_wide;
    const unsigned block = gridDim.x - 1 - blockIdx.x;  // from the last row to the first, see map_rows.cuh
    const std::int64_t column = (block % column_blocks * std::int64_t{sum_columns_wide} + lane_x) * n;
    const std::int64_t row_block = block / column_blocks, begin = row_block * column_sum_rows;
    const std::int64_t end = begin + column_sum_rows < rows ? begin + column_sum_rows : rows;
    S sums[n] = {};
    if (column < columns) {
        for (std::int64_t first = begin + lane_y; first < end; first += sum_lanes * unroll) {
            decltype(source.read(first, column)) fetched[unroll];
#pragma unroll
            for (int u = 0; u < unroll; ++u)
                if (first + u * sum_lanes < end) fetched[u] = source.read(first + u * sum_lanes, column);
#pragma unroll
            for (int u = 0; u < unroll; ++u) {
                if (first + u * sum_lanes >= end) break;
                S values[n];
                source.finish(values, fetched[u], first + u * sum_lanes, column);
#pragma unroll
                for (int i = 0; i < n; ++i) sums[i] += values[i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < n; ++i) shared[lane_y][lane_x][i] = sums[i];
    __syncthreads();
    if (lane_y != 0 || column >= columns) return;
#pragma unroll
    for (int lane = 1; lane < sum_lanes; ++lane)
#pragma unroll
        for (int i = 0; i < n; ++i) sums[i] += shared[lane][lane_x][i];
    device::store<n>(parts + row_block * columns + column, sums);
}

}  // namespace device

/// parts [ceil(rows / column_sum_rows), columns] = column sums over the values from Source<n>. n is the
/// number of columns per thread: vector_length<T> if `vectors` is set, else 1.
template <class T, template <int> class Source, class... Arguments>
void sum_columns_of(const Context& ctx, const Tensor& parts, std::int64_t rows, bool vectors,
                    const Arguments&... arguments) {
    using S = Accumulator<T>;
    const std::int64_t columns = parts.size(1);
    const auto run = [&]<int n>(std::integral_constant<int, n>) {
        const std::int64_t column_blocks = ceil_div(columns, device::sum_columns_wide * n);
        launch(ctx, device::column_sums_kernel<n, S, Source<n>>, blocks_for(column_blocks * parts.size(0), 1),
               Block{.threads = device::sum_columns_wide * device::sum_lanes, .starts_early = true},
               parts.data<S>(), Source<n>{arguments...}, rows, columns, static_cast<unsigned>(column_blocks));
    };
    constexpr int n = device::vector_length<T>;
    if (vectors && columns % n == 0 && device::on_vector_boundary(parts)) {
        run(std::integral_constant<int, n>{});
    } else {
        run(std::integral_constant<int, 1>{});
    }
}

}  // namespace gradtile::cuda
