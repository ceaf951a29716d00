// tensor_math.h on the GPU. Reductions add in a fixed order, without atomics.
#include <algorithm>
#include <limits>

#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/internal/tensor_math_backend.h>
#include <gradtile/core/internal/unknown_enumerator.h>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>
#include <gradtile/core/cuda/device/strided.cuh>

namespace gradtile::cuda {
namespace {

template <Arithmetic op, class Real>
__device__ Real result_of(Real a, Real b) {
    if constexpr (op == Arithmetic::add) {
        return a + b;
    } else if constexpr (op == Arithmetic::subtract) {
        return a - b;
    } else if constexpr (op == Arithmetic::multiply) {
        return a * b;
    } else {
        static_assert(op == Arithmetic::divide);
        return a / b;
    }
}

template <Arithmetic op, class T>
__global__ void combine_kernel(T* y, const T* a, const T* b, Layout<3> layout, std::int64_t elements) {
    using Real = Accumulator<T>;
    for_elements(layout, elements, [&](const Offsets<3>& offsets) {
        y[offsets.values[0]] = device::convert<T>(result_of<op>(device::convert<Real>(a[offsets.values[1]]),
                                                                device::convert<Real>(b[offsets.values[2]])));
    });
}

template <class T>
__global__ void scale_kernel(T* y, const T* x, Accumulator<T> factor, Layout<2> layout,
                             std::int64_t elements) {
    for_elements(layout, elements, [&](const Offsets<2>& offsets) {
        y[offsets.values[0]] =
            device::convert<T>(factor * device::convert<Accumulator<T>>(x[offsets.values[1]]));
    });
}

template <MathFunction function, class Real>
__device__ Real function_of(Real x) {
    if constexpr (function == MathFunction::exp) {
        return ::exp(x);
    } else {
        static_assert(function == MathFunction::log);
        return ::log(x);
    }
}

template <MathFunction function, class T>
__global__ void apply_kernel(T* y, const T* x, Layout<2> layout, std::int64_t elements) {
    for_elements(layout, elements, [&](const Offsets<2>& offsets) {
        const auto value = device::convert<Accumulator<T>>(x[offsets.values[1]]);
        y[offsets.values[0]] = device::convert<T>(function_of<function>(value));
    });
}

constexpr int reducing_threads = 256;

struct Larger {
    template <class S>
    __device__ S operator()(S a, S b) const {
        return a != a || a >= b ? a : b;  // keeps a NaN
    }
};

/// y[r] = row r of x, reduced with `combine`. One block per row.
template <class Combine, class To, class From>
__global__ void __launch_bounds__(reducing_threads)
    reduce_rows_kernel(To* y, const From* x, Accumulator<From> start, std::int64_t rows, std::int64_t n) {
    using Real = Accumulator<From>;
    const Combine combine;
    for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const From* const elements = x + row * n;
        Real value = start;
        for (std::int64_t i = threadIdx.x; i < n; i += reducing_threads)
            value = combine(value, device::convert<Real>(elements[i]));
        value = device::reduce_team<reducing_threads>(value, combine);
        if (threadIdx.x == 0) y[row] = device::convert<To>(value);
    }
}

template <class Combine, class To, class From>
void reduce(const Context& ctx, To* y, const From* x, double start, const Shape& shape) {
    constexpr std::int64_t max_blocks = 8 * 1024;
    const std::int64_t rows = shape[0];
    if (rows == 0) return;
    launch(ctx, reduce_rows_kernel<Combine, To, From>, blocks_for(std::min(rows, max_blocks), 1),
           Block{.threads = reducing_threads}, y, x, static_cast<Accumulator<From>>(start), rows, shape[1]);
}

template <Arithmetic op>
void combine_with(const Context& ctx, const Tensor& y, const Tensor& a, const Tensor& b) {
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        launch_strided<3>(ctx, combine_kernel<op, T>, {y, a, b}, y.data<T>(),
                          static_cast<const T*>(a.data<T>()), static_cast<const T*>(b.data<T>()));
    });
}

template <MathFunction function>
void apply_function(const Context& ctx, const Tensor& y, const Tensor& x) {
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        launch_strided<2>(ctx, apply_kernel<function, T>, {y, x}, y.data<T>(),
                          static_cast<const T*>(x.data<T>()));
    });
}

}  // namespace

void combine(const Context& ctx, const Tensor& y, const Tensor& a, const Tensor& b, Arithmetic op) {
    switch (op) {
        case Arithmetic::add:
            return combine_with<Arithmetic::add>(ctx, y, a, b);
        case Arithmetic::subtract:
            return combine_with<Arithmetic::subtract>(ctx, y, a, b);
        case Arithmetic::multiply:
            return combine_with<Arithmetic::multiply>(ctx, y, a, b);
        case Arithmetic::divide:
            return combine_with<Arithmetic::divide>(ctx, y, a, b);
    }
    refuse_unknown("tensor_math: unknown arithmetic");
}

void scale(const Context& ctx, const Tensor& y, const Tensor& x, double factor) {
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        launch_strided<2>(ctx, scale_kernel<T>, {y, x}, y.data<T>(), static_cast<const T*>(x.data<T>()),
                          static_cast<Accumulator<T>>(factor));
    });
}

void apply(const Context& ctx, const Tensor& y, const Tensor& x, MathFunction function) {
    switch (function) {
        case MathFunction::exp:
            return apply_function<MathFunction::exp>(ctx, y, x);
        case MathFunction::log:
            return apply_function<MathFunction::log>(ctx, y, x);
    }
    refuse_unknown("tensor_math: unknown function");
}

void reduce_rows(const Context& ctx, const Tensor& y, const Tensor& x, Reduction reduction) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        const T* const rows = x.data<T>();
        if (reduction == Reduction::sum) {
            reduce<device::Sum>(ctx, y.data<Accumulator<T>>(), rows, 0.0, x.shape());
        } else {
            constexpr double start = -std::numeric_limits<double>::infinity();
            reduce<Larger>(ctx, y.data<T>(), rows, start, x.shape());
        }
    });
}

}  // namespace gradtile::cuda
