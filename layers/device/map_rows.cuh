#pragma once
/// Element-wise operators over the rows of tensors that all have the same shape. Tensors are read and written
/// 16 bytes at a time if all of them allow it. An output may be one of the inputs.
#include <array>

#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/layers/device/place.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace device {

constexpr int map_threads = 256;

/// Each thread prefetches map_unroll groups of n elements per input. map_blocks blocks per multiprocessor
/// keep enough loads in flight. Dropout in float32 and float64 processes more than 16 bytes at a time and
/// needs more registers, so it has fewer blocks.
template <int inputs>
inline constexpr int map_unroll = inputs == 1 ? 2 : 1;
template <int n, class T, int inputs>
inline constexpr int map_blocks = (n > vector_length<T>) ? 2
                                  : inputs <= 2          ? 5
                                                         : 4;

template <int n, class T, int inputs, int outputs>
struct MapArguments {
    DeviceRows<const T> in[inputs];
    DeviceRows<T> out[outputs];
    Divisor vectors_per_row;
    std::int64_t vectors;
    bool dense;  // every tensor's rows are adjacent in memory
};

/// Returns op.prepared(), which an operator can define for work that each thread does once; else op itself.
template <class Operator>
__device__ __forceinline__ auto prepared(const Operator& op) {
    if constexpr (requires { op.prepared(); }) {
        return op.prepared();
    } else {
        return op;
    }
}

template <int n, class T, int inputs, int outputs, class Operator>
__global__ void __launch_bounds__(map_threads, (map_blocks<n, T, inputs>))
    map_rows_kernel(const MapArguments<n, T, inputs, outputs> arguments, const Operator op) {
    using S = Accumulator<T>;
    constexpr int unroll = map_unroll<inputs>;
    await_predecessor();
    const auto ready = prepared(op);
    const auto place_of = [&](std::int64_t index) {
        const std::int64_t row = arguments.vectors_per_row.quotient_of(index);
        return Place{row, (index - row * arguments.vectors_per_row.value) * n};
    };
    Fetched<n, T> ahead[unroll][inputs];
    const auto fetch = [&](std::int64_t last) {
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::int64_t index = last - u * map_threads;
            if (index < 0) break;
#pragma unroll
            for (int i = 0; i < inputs; ++i) {
                if (arguments.dense) {
                    ahead[u][i].read(arguments.in[i].data + index * n);
                } else {
                    const Place place = place_of(index);
                    ahead[u][i].read(arguments.in[i][place.row] + place.column);
                }
            }
        }
    };
    // Processes rows from the last to the first: the rows that the previous kernel wrote last are still in
    // the L2 cache, and the next kernel first reads the rows that this kernel writes last.
    const std::int64_t step = gridDim.x * std::int64_t{map_threads * unroll};
    std::int64_t last =
        arguments.vectors - 1 - (blockIdx.x * std::int64_t{map_threads * unroll} + threadIdx.x);
    fetch(last);
    for (; last >= 0; last -= step) {
        Fetched<n, T> fetched[unroll][inputs];
#pragma unroll
        for (int u = 0; u < unroll; ++u)
#pragma unroll
            for (int i = 0; i < inputs; ++i) fetched[u][i] = ahead[u][i];
        fetch(last - step);
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const std::int64_t index = last - u * map_threads;
            if (index < 0) break;
            S in[inputs][n], out[outputs][n];
#pragma unroll
            for (int i = 0; i < inputs; ++i) fetched[u][i].values(in[i]);
            const Place place = place_of(index);
            ready(out, in, place);
#pragma unroll
            for (int i = 0; i < outputs; ++i)
                store<n>(arguments.dense ? arguments.out[i].data + index * n
                                         : arguments.out[i][place.row] + place.column,
                         out[i]);
        }
    }
}

}  // namespace device

/// Computes out = op(in). Calls op(S (&out)[outputs][n], const S (&in)[inputs][n], Place) for n neighbouring
/// columns. If all rows consist of aligned groups of `together` elements, n is `together`, which must be
/// divisible by the vector length. Otherwise, or if `vectors` is false because op itself reads unaligned
/// data, n is 1.
template <int together, class T, std::size_t inputs, std::size_t outputs, class Operator>
void map_rows(const Context& ctx, const std::array<device::DeviceRows<T>, outputs>& out,
              const std::array<device::DeviceRows<const T>, inputs>& in, const Operator& op,
              bool vectors = true) {
    const std::int64_t rows = out[0].layout.rows, width = out[0].layout.width;
    const auto run = [&]<int n>(std::integral_constant<int, n>) {
        const auto is_dense = [](const auto& rows_of) { return rows_of.dense(); };
        device::MapArguments<n, T, int{inputs}, int{outputs}> arguments{
            .in = {},
            .out = {},
            .vectors_per_row = device::Divisor(width / n),
            .vectors = rows * (width / n),
            .dense =
                std::all_of(in.begin(), in.end(), is_dense) && std::all_of(out.begin(), out.end(), is_dense)};
        std::copy(in.begin(), in.end(), arguments.in);
        std::copy(out.begin(), out.end(), arguments.out);
        const std::int64_t blocks =
            ceil_div(arguments.vectors, device::map_threads * device::map_unroll<int{inputs}>);
        const std::int64_t at_once = processors_of(ctx) * std::int64_t{device::map_blocks<n, T, int{inputs}>};
        launch(ctx, device::map_rows_kernel<n, T, int{inputs}, int{outputs}, Operator>,
               blocks_for(std::min(blocks, at_once), 1),
               Block{.threads = device::map_threads, .starts_early = true}, arguments, op);
    };
    const auto fits = [](const auto& rows_of) { return rows_of.in_vectors(together); };
    if (vectors && std::all_of(in.begin(), in.end(), fits) && std::all_of(out.begin(), out.end(), fits)) {
        run(std::integral_constant<int, together>{});
    } else {
        run(std::integral_constant<int, 1>{});
    }
}

}  // namespace gradtile::cuda
