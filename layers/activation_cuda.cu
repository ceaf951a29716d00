// Activations on the GPU.
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/internal/activation_formulas.h>
#include <gradtile/layers/device/activation_math.cuh>
#include <gradtile/layers/device/column_sums.cuh>
#include <gradtile/layers/device/map_rows.cuh>

namespace gradtile::cuda {
namespace {

using device::Place;
using device::vector_length;
template <class T>
using Output = device::DeviceRows<T>;
template <class T>
using Input = device::DeviceRows<const T>;

template <class Formula>
struct Forward {
    template <class S, int n>
    __device__ void operator()(S (&y)[1][n], const S (&x)[1][n], Place) const {
#pragma unroll
        for (int i = 0; i < n; ++i) y[0][i] = Formula::value(x[0][i]);
    }
};

template <class Formula>
struct Backward {
    template <class S, int n>
    __device__ void operator()(S (&dx)[1][n], const S (&in)[2][n], Place) const {
        const auto& [dy, x] = in;
#pragma unroll
        for (int i = 0; i < n; ++i) dx[0][i] = dy[i] * Formula::slope(x[i]);
    }
};

/// Backward that also sums dx's columns: a Source for column_sums.cuh.
template <class T, class Formula>
struct BackwardSummed {
    template <int n>
    struct Of {
        static constexpr int inputs = 2, blocks = 1;
        T* dx;
        const T *dy, *x;
        std::int64_t dx_stride, dy_stride, x_stride;

        struct Both {
            device::Fetched<n, T> dy, x;
        };
        __device__ Both read(std::int64_t row, std::int64_t column) const {
            Both fetched;
            fetched.dy.read(dy + row * dy_stride + column);
            fetched.x.read(x + row * x_stride + column);
            return fetched;
        }
        /// Computes dx, stores it, and returns the stored values, which the caller sums.
        template <class S>
        __device__ void finish(S (&values)[n], const Both& fetched, std::int64_t row,
                               std::int64_t column) const {
            S x_values[n];
            fetched.dy.values(values);
            fetched.x.values(x_values);
#pragma unroll
            for (int i = 0; i < n; ++i)
                values[i] = device::convert<S>(device::convert<T>(values[i] * Formula::slope(x_values[i])));
            device::store<n>(dx + row * dx_stride + column, values);
        }
    };
};

template <class Formula>
struct GatedForward {
    template <class S, int n>
    __device__ void operator()(S (&y)[1][n], const S (&in)[2][n], Place) const {
        const auto& [gate, up] = in;
#pragma unroll
        for (int i = 0; i < n; ++i) y[0][i] = Formula::value(gate[i], up[i]);
    }
};

template <class Formula>
struct GatedBackward {
    template <class S, int n>
    __device__ void operator()(S (&out)[2][n], const S (&in)[3][n], Place) const {
        auto& [d_gate, d_up] = out;
        const auto& [dy, gate, up] = in;
#pragma unroll
        for (int i = 0; i < n; ++i) {
            const auto gradient = Formula::gradient(dy[i], gate[i], up[i]);
            d_gate[i] = gradient.gate;
            d_up[i] = gradient.up;
        }
    }
};

/// The gate (which = 0) or up (which = 1) half of packed rows [gate, up].
template <class View>
View half_of(View rows, int which) {
    rows.layout.width /= 2;
    rows.data += which * rows.layout.width;
    return rows;
}

constexpr const char* op = "activation";

/// Calls f(TypeTag<T>{}, TypeTag<Formula>{}) with the element type T and the formula in T's accumulator type.
template <class F>
void visit(DType dtype, Activation activation, F&& f) {
    visit_floating(dtype, [&]<class T>(TypeTag<T> type) {
        activation_formulas::visit<device::ActivationMath, Accumulator<T>>(
            activation, [&](auto formula) { f(type, formula); });
    });
}

}  // namespace

void activation_forward(const Context& ctx, const Tensor& y, const Tensor& x, Activation activation) {
    visit(x.dtype(), activation, [&]<class T, class Formula>(TypeTag<T>, TypeTag<Formula>) {
        const Output<T> out(y, op);
        const Input<T> in(x, op);
        if constexpr (activation_formulas::Gated<Formula>) {
            map_rows<vector_length<T>, T, 2, 1>(ctx, {out}, {half_of(in, 0), half_of(in, 1)},
                                                GatedForward<Formula>{});
        } else {
            map_rows<vector_length<T>, T, 1, 1>(ctx, {out}, {in}, Forward<Formula>{});
        }
    });
}

void activation_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         Activation activation) {
    visit(x.dtype(), activation, [&]<class T, class Formula>(TypeTag<T>, TypeTag<Formula>) {
        const Output<T> out(dx, op);
        const Input<T> gradient(dy, op), in(x, op);
        if constexpr (activation_formulas::Gated<Formula>) {
            map_rows<vector_length<T>, T, 3, 2>(ctx, {half_of(out, 0), half_of(out, 1)},
                                                {gradient, half_of(in, 0), half_of(in, 1)},
                                                GatedBackward<Formula>{});
        } else {
            map_rows<vector_length<T>, T, 2, 1>(ctx, {out}, {gradient, in}, Backward<Formula>{});
        }
    });
}

void activation_backward_summed(const Context& ctx, const SummedGradient& gradient, const Tensor& dy,
                                const Tensor& x, Activation activation) {
    const Tensor& dx = gradient.dy;
    visit(x.dtype(), activation, [&]<class T, class Formula>(TypeTag<T>, TypeTag<Formula>) {
        if constexpr (activation_formulas::Gated<Formula>) {
            throw Error(concat("activation: no column sums for the gated activation ", name_of(activation)));
        } else {
            bool vectors = true;
            for (const Tensor* matrix : {&dx, &dy, &x})
                vectors &= matrix->stride(0) % vector_length<T> == 0 && device::on_vector_boundary(*matrix);
            sum_columns_of<T, BackwardSummed<T, Formula>::template Of>(
                ctx, gradient.column_sums, x.size(0), vectors, dx.data<T>(),
                static_cast<const T*>(dy.data<T>()), static_cast<const T*>(x.data<T>()), dx.stride(0),
                dy.stride(0), x.stride(0));
        }
    });
}

}  // namespace gradtile::cuda
