// What Linear needs beside matrix products, on the GPU.
#include <gradtile/layers/linear_backend.h>
#include <gradtile/layers/device/partial_sums.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace {

constexpr int sum_columns = 32;  // vectors of columns a block takes
constexpr int sum_lanes = 8;     // threads that share a column, each with every eighth row

/// partial[block] = the sums of column_sum_rows rows, n columns a thread.
template <int n, class T>
__global__ void __launch_bounds__(sum_columns* sum_lanes)
    column_sums_kernel(Accumulator<T>* partial, const T* x, std::int64_t rows, std::int64_t columns,
                       std::int64_t row_stride, unsigned column_blocks) {
    using S = Accumulator<T>;
    __shared__ S shared[sum_lanes][sum_columns][n];
    const int lane_x = threadIdx.x % sum_columns, lane_y = threadIdx.x / sum_columns;
    const std::int64_t column = (blockIdx.x % column_blocks * std::int64_t{sum_columns} + lane_x) * n;
    const std::int64_t row_block = blockIdx.x / column_blocks, begin = row_block * column_sum_rows;
    const std::int64_t end = begin + column_sum_rows < rows ? begin + column_sum_rows : rows;
    S sums[n] = {};
    if (column < columns) {
#pragma unroll 4
        for (std::int64_t row = begin + lane_y; row < end; row += sum_lanes) {
            S values[n];
            device::load<n>(values, x + row * row_stride + column);
#pragma unroll
            for (int i = 0; i < n; ++i) sums[i] += values[i];
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
    device::store<n>(partial + row_block * columns + column, sums);
}

}  // namespace

void add_column_sums(const Context& ctx, const Tensor& sums, const Tensor& x, const Tensor& partial) {
    const std::int64_t rows = x.size(0), columns = x.size(1), stride = x.stride(0);
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        const auto run = [&]<int n>(std::integral_constant<int, n>) {
            const std::int64_t column_blocks = ceil_div(columns, sum_columns * n);
            launch(ctx, column_sums_kernel<n, T>, blocks_for(column_blocks * partial.size(0), 1),
                   Block{sum_columns * sum_lanes}, partial.data<S>(), x.data<T>(), rows, columns, stride,
                   static_cast<unsigned>(column_blocks));
        };
        constexpr int n = device::vector_length<T>;
        if (columns % n == 0 && stride % n == 0 && device::on_vector_boundary(x) &&
            device::on_vector_boundary(partial)) {
            run(std::integral_constant<int, n>{});
        } else {
            run(std::integral_constant<int, 1>{});
        }
        add_partials<S, 1>(ctx, {{sums.data<S>()}, partial.data<S>(), partial.size(0), columns});
    });
}

}  // namespace gradtile::cuda
