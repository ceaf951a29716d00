#pragma once
/// Element-wise operators over the rows of tensors of one shape: reads some, writes others, 16 bytes at a
/// time where all of them allow it. An output may be one of the inputs.
#include <array>

#include <gradtile/core/device/launch.cuh>
#include <gradtile/layers/device/place.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace device {

constexpr int map_threads = 256;
constexpr int map_unroll = 2;  // loads in flight of one thread, for each input

template <int n, class T, int inputs, int outputs>
struct MapArguments {
    Rows<const T> in[inputs];
    Rows<T> out[outputs];
    Divisor vectors_per_row;
    std::int64_t vectors;
    bool dense;  // every tensor is one run of elements
};

/// What an operator makes of itself once a thread, or itself.
template <class Operator>
__device__ __forceinline__ auto prepared(const Operator& op) {
    if constexpr (requires { op.prepared(); }) {
        return op.prepared();
    } else {
        return op;
    }
}

template <int n, class T, int inputs, int outputs, class Operator>
__global__ void __launch_bounds__(map_threads)
    map_rows_kernel(const MapArguments<n, T, inputs, outputs> arguments, const Operator op) {
    using S = Accumulator<T>;
    const std::int64_t first = blockIdx.x * std::int64_t{map_threads * map_unroll} + threadIdx.x;
    S in[map_unroll][inputs][n], out[outputs][n];
    Place at[map_unroll];
    const auto ready = prepared(op);
#pragma unroll
    for (int u = 0; u < map_unroll; ++u) {
        const std::int64_t index = first + u * map_threads;
        if (index >= arguments.vectors) break;
        at[u].row = arguments.vectors_per_row.quotient_of(index);
        at[u].column = (index - at[u].row * arguments.vectors_per_row.value) * n;
#pragma unroll
        for (int i = 0; i < inputs; ++i)
            load<n>(in[u][i], arguments.dense ? arguments.in[i].data + index * n
                                              : arguments.in[i][at[u].row] + at[u].column);
    }
#pragma unroll
    for (int u = 0; u < map_unroll; ++u) {
        const std::int64_t index = first + u * map_threads;
        if (index >= arguments.vectors) break;
        ready(out, in[u], at[u]);
#pragma unroll
        for (int i = 0; i < outputs; ++i)
            store<n>(arguments.dense ? arguments.out[i].data + index * n
                                     : arguments.out[i][at[u].row] + at[u].column,
                     out[i]);
    }
}

}  // namespace device

/// out = op(in) with op(S (&out)[outputs][n], const S (&in)[inputs][n], Place), called for n neighbouring
/// columns: n = `together`, a multiple of the vector length, or 1 where a row is not made of such vectors or
/// `vectors` says that what op reads itself is not.
template <int together, class T, std::size_t inputs, std::size_t outputs, class Operator>
void map_rows(const Context& ctx, const std::array<device::Rows<T>, outputs>& out,
              const std::array<device::Rows<const T>, inputs>& in, const Operator& op, bool vectors = true) {
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
        launch(ctx, device::map_rows_kernel<n, T, int{inputs}, int{outputs}, Operator>,
               blocks_for(arguments.vectors, device::map_threads * device::map_unroll),
               Block{device::map_threads}, arguments, op);
    };
    const auto fits = [](const auto& rows_of) { return rows_of.in_vectors(together); };
    if (vectors && std::all_of(in.begin(), in.end(), fits) && std::all_of(out.begin(), out.end(), fits)) {
        run(std::integral_constant<int, together>{});
    } else {
        run(std::integral_constant<int, 1>{});
    }
}

}  // namespace gradtile::cuda
