// GELU and SwiGLU on the GPU.
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/device/activation_math.cuh>
#include <gradtile/layers/device/column_sums.cuh>
#include <gradtile/layers/device/map_rows.cuh>

namespace gradtile::cuda {
namespace {

using device::Place;
using device::vector_length;
template <class T>
using Output = device::Rows<T>;
template <class T>
using Input = device::Rows<const T>;

template <class Form>
struct GeluForward {
    template <class S, int n>
    __device__ void operator()(S (&y)[1][n], const S (&x)[1][n], Place) const {
#pragma unroll
        for (int i = 0; i < n; ++i) y[0][i] = Form::value(x[0][i]);
    }
};

template <class Form>
struct GeluBackward {
    template <class S, int n>
    __device__ void operator()(S (&dx)[1][n], const S (&in)[2][n], Place) const {
        const auto& [dy, x] = in;
#pragma unroll
        for (int i = 0; i < n; ++i) dx[0][i] = dy[i] * Form::slope(x[i]);
    }
};

/// The same on the way to dx's column sums.
template <class T, class Form>
struct GeluBackwardSummed {
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
        /// What is summed is what was stored.
        template <class S>
        __device__ void finish(S (&values)[n], const Both& fetched, std::int64_t row,
                               std::int64_t column) const {
            S at[n];
            fetched.dy.values(values);
            fetched.x.values(at);
#pragma unroll
            for (int i = 0; i < n; ++i)
                values[i] = device::convert<S>(device::convert<T>(values[i] * Form::slope(at[i])));
            device::store<n>(dx + row * dx_stride + column, values);
        }
    };
};

/// y = silu(gate) * up with silu(g) = g sigmoid(g).
struct SwigluForward {
    template <class S, int n>
    __device__ void operator()(S (&y)[1][n], const S (&in)[2][n], Place) const {
        const auto& [gate, up] = in;
#pragma unroll
        for (int i = 0; i < n; ++i) y[0][i] = gate[i] * device::sigmoid(gate[i]) * up[i];
    }
};

/// silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g).
struct SwigluBackward {
    template <class S, int n>
    __device__ void operator()(S (&out)[2][n], const S (&in)[3][n], Place) const {
        auto& [d_gate, d_up] = out;
        const auto& [dy, gate, up] = in;
#pragma unroll
        for (int i = 0; i < n; ++i) {
            const S s = device::sigmoid(gate[i]);
            d_gate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
            d_up[i] = dy[i] * gate[i] * s;
        }
    }
};

/// The gate's half (0) or the up half (1) of packed rows [gate, up].
template <class View>
View half_of(View rows, int which) {
    rows.layout.width /= 2;
    rows.data += which * rows.layout.width;
    return rows;
}

template <class F>
void visit_form(Gelu::Form form, DType dtype, F&& f) {
    visit_floating(dtype, [&]<class T>(TypeTag<T> type) {
        if (form == Gelu::Form::tanh) {
            f(type, TypeTag<device::GeluTanh<Accumulator<T>>>{});
        } else {
            f(type, TypeTag<device::GeluExact<Accumulator<T>>>{});
        }
    });
}

}  // namespace

void gelu_forward(const Context& ctx, const Tensor& y, const Tensor& x, Gelu::Form form) {
    visit_form(form, x.dtype(), [&]<class T, class Form>(TypeTag<T>, TypeTag<Form>) {
        map_rows<vector_length<T>, T, 1, 1>(ctx, {Output<T>(y, "gelu")}, {Input<T>(x, "gelu")},
                                            GeluForward<Form>{});
    });
}

void gelu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu::Form form) {
    visit_form(form, x.dtype(), [&]<class T, class Form>(TypeTag<T>, TypeTag<Form>) {
        map_rows<vector_length<T>, T, 2, 1>(
            ctx, {Output<T>(dx, "gelu")}, {Input<T>(dy, "gelu"), Input<T>(x, "gelu")}, GeluBackward<Form>{});
    });
}

void gelu_backward_summed(const Context& ctx, const SummedGradient& gradient, const Tensor& dy,
                          const Tensor& x, Gelu::Form form) {
    const Tensor& dx = gradient.dy;
    visit_form(form, x.dtype(), [&]<class T, class Form>(TypeTag<T>, TypeTag<Form>) {
        bool vectors = true;
        for (const Tensor* matrix : {&dx, &dy, &x})
            vectors &= matrix->stride(0) % vector_length<T> == 0 && device::on_vector_boundary(*matrix);
        sum_columns_of<T, GeluBackwardSummed<T, Form>::template Of>(
            ctx, gradient.column_sums, x.size(0), vectors, dx.data<T>(), static_cast<const T*>(dy.data<T>()),
            static_cast<const T*>(x.data<T>()), dx.stride(0), dy.stride(0), x.stride(0));
    });
}

void swiglu_forward(const Context& ctx, const Tensor& y, const Tensor& x) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        const Input<T> packed(x, "swiglu");
        map_rows<vector_length<T>, T, 2, 1>(ctx, {Output<T>(y, "swiglu")},
                                            {half_of(packed, 0), half_of(packed, 1)}, SwigluForward{});
    });
}

void swiglu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        const Input<T> packed(x, "swiglu");
        const Output<T> d_packed(dx, "swiglu");
        map_rows<vector_length<T>, T, 3, 2>(ctx, {half_of(d_packed, 0), half_of(d_packed, 1)},
                                            {Input<T>(dy, "swiglu"), half_of(packed, 0), half_of(packed, 1)},
                                            SwigluBackward{});
    });
}

}  // namespace gradtile::cuda
