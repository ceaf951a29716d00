// The functions fill, copy and axpy on the GPU, for tensors with any strides.
#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/internal/tensor_ops_backend.h>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/strided.cuh>

namespace gradtile::cuda {
namespace {

template <class T>
__global__ void fill_kernel(T* x, T value, Layout<1> layout, std::int64_t elements) {
    for_elements(layout, elements, [&](const Offsets<1>& offsets) { x[offsets.values[0]] = value; });
}

template <class To, class From>
__global__ void copy_kernel(To* to, const From* from, Layout<2> layout, std::int64_t elements) {
    for_elements(layout, elements, [&](const Offsets<2>& offsets) {
        to[offsets.values[0]] = device::convert<To>(from[offsets.values[1]]);
    });
}

template <class Y, class X>
__global__ void axpy_kernel(Y* y, Accumulator<Y> alpha, const X* x, Layout<2> layout, std::int64_t elements) {
    using Sum = Accumulator<Y>;
    for_elements(layout, elements, [&](const Offsets<2>& offsets) {
        Y& sum = y[offsets.values[0]];
        sum = device::convert<Y>(device::convert<Sum>(sum) +
                                 alpha * device::convert<Sum>(x[offsets.values[1]]));
    });
}

}  // namespace

bool kernels_run_here() {
    cudaFuncAttributes attributes;
    const cudaError_t status = cudaFuncGetAttributes(&attributes, fill_kernel<float>);
    (void)cudaGetLastError();
    return status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction;
}

void fill(const Context& ctx, const Tensor& x, double value) {
    visit_any(x.dtype(), [&]<class T>(TypeTag<T>) {
        launch_strided<1>(ctx, fill_kernel<T>, {x}, x.data<T>(), gradtile::convert<T>(value));
    });
}

void copy(const Context& ctx, const Tensor& destination, const Tensor& source) {
    visit_any(destination.dtype(), [&]<class To>(TypeTag<To>) {
        visit_any(source.dtype(), [&]<class From>(TypeTag<From>) {
            launch_strided<2>(ctx, copy_kernel<To, From>, {destination, source}, destination.data<To>(),
                              static_cast<const From*>(source.data<From>()));
        });
    });
}

void axpy(const Context& ctx, const Tensor& y, double alpha, const Tensor& x) {
    visit_floating(y.dtype(), [&]<class Y>(TypeTag<Y>) {
        visit_floating(x.dtype(), [&]<class X>(TypeTag<X>) {
            launch_strided<2>(ctx, axpy_kernel<Y, X>, {y, x}, y.data<Y>(), static_cast<Accumulator<Y>>(alpha),
                              static_cast<const X*>(x.data<X>()));
        });
    });
}

}  // namespace gradtile::cuda
