// Gates of heads on the GPU.
#include <gradtile/layers/internal/head_gate_backend.h>
#include <gradtile/core/cuda/device/reduce.cuh>
#include <gradtile/layers/device/map_rows.cuh>

namespace gradtile::cuda {
namespace {

using namespace device;

constexpr int gate_threads = 256;
constexpr int gate_team = 16;  // threads per head: 16 vectors of 8 are 128 columns

template <class S>
__device__ __forceinline__ S sigmoid(S x) {
    return 1 / (1 + exp(-x));
}

/// y = gate x, or gate x + y if there is a second input.
template <class T>
struct Gate {
    const T* logits;
    Accumulator<T> scale;

    template <class S, int inputs, int n>
    __device__ void operator()(S (&y)[1][n], const S (&in)[inputs][n], Place place) const {
        const S gate = scale * sigmoid(device::convert<S>(logits[place.row]));
#pragma unroll
        for (int i = 0; i < n; ++i) {
            y[0][i] = gate * in[0][i];
            if constexpr (inputs == 2) y[0][i] += in[1][i];
        }
    }
};

template <class T>
struct GateGradient {
    DeviceRows<const T> dy, x;
    DeviceRows<T> dx;
    const T* logits;
    T* d_logits;
    Accumulator<T> scale;
};

/// One team per row. dx may be dy, because a thread reads its columns before it writes them.
template <int n, class T>
__global__ void __launch_bounds__(gate_threads) gate_backward_kernel(const GateGradient<T> p) {
    using S = Accumulator<T>;
    await_predecessor();
    const int lane = static_cast<int>(threadIdx.x) % gate_team;
    const std::int64_t row = blockIdx.x * std::int64_t{gate_threads / gate_team} + threadIdx.x / gate_team;
    const bool has_row = row < p.x.layout.rows;  // lanes without a row still take part in the reduction
    S sum = 0, s = 0;
    if (has_row) {
        s = sigmoid(device::convert<S>(p.logits[row]));
        const T *const dy_row = p.dy[row], *const x_row = p.x[row];
        T* const dx_row = p.dx[row];
        for (std::int64_t column = lane * n; column < p.x.layout.width; column += gate_team * n) {
            S dy[n], x[n], dx[n];
            load<n>(dy, dy_row + column);
            load<n>(x, x_row + column);
#pragma unroll
            for (int i = 0; i < n; ++i) {
                sum += dy[i] * x[i];
                dx[i] = p.scale * s * dy[i];
            }
            store<n>(dx_row + column, dx);
        }
    }
    sum = reduce_lanes<gate_team>(sum, Sum{});
    if (has_row && lane == 0) p.d_logits[row] = device::convert<T>(p.scale * s * (1 - s) * sum);
}

}  // namespace

void gate_heads(const Context& ctx, const GatedHeads& op) {
    visit_floating(op.x.dtype(), [&]<class T>(TypeTag<T>) {
        const Gate<T> gate{op.logits.data<T>(), static_cast<Accumulator<T>>(op.scale)};
        const DeviceRows<T> y(op.y, "head_gate");
        const DeviceRows<const T> x(op.x, "head_gate");
        if (op.adds) {
            map_rows<vector_length<T>, T, 2, 1>(ctx, {y}, {x, DeviceRows<const T>(op.y, "head_gate")}, gate);
        } else {
            map_rows<vector_length<T>, T, 1, 1>(ctx, {y}, {x}, gate);
        }
    });
}

void differentiate_gated_heads(const Context& ctx, const GatedHeadsGradient& op) {
    visit_floating(op.x.dtype(), [&]<class T>(TypeTag<T>) {
        const GateGradient<T> p{.dy = DeviceRows<const T>(op.dy, "head_gate"),
                                .x = DeviceRows<const T>(op.x, "head_gate"),
                                .dx = DeviceRows<T>(op.dx, "head_gate"),
                                .logits = op.logits.data<T>(),
                                .d_logits = op.d_logits.data<T>(),
                                .scale = static_cast<Accumulator<T>>(op.scale)};
        const dim3 grid = blocks_for(p.x.layout.rows, gate_threads / gate_team);
        const Block block{.threads = gate_threads, .starts_early = true};
        if (p.dy.in_vectors() && p.x.in_vectors() && p.dx.in_vectors()) {
            launch(ctx, gate_backward_kernel<vector_length<T>, T>, grid, block, p);
        } else {
            launch(ctx, gate_backward_kernel<1, T>, grid, block, p);
        }
    });
}

}  // namespace gradtile::cuda
