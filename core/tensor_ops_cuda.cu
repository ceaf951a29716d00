// fill, copy and axpy on the GPU for any strides.
#include <algorithm>

#include <gradtile/core/cuda/internal/cuda_check.h>
#include <gradtile/core/internal/tensor_ops_backend.h>
#include <gradtile/core/cuda/device/convert.cuh>

namespace gradtile::cuda {
namespace {

constexpr int threads_per_block = 256;
// Enough blocks to fill the largest GPU several times over; each then strides through the elements.
constexpr std::int64_t most_blocks = 8 * 1024;

/// The axes two tensors share, neighbours merged where both allow it: contiguous pairs become one axis.
struct Layout {
    int rank = 0;
    std::int64_t size[Shape::max_rank];
    std::int64_t step_a[Shape::max_rank], step_b[Shape::max_rank];

    Layout(const Tensor& a, const Tensor& b) {
        for (int axis = 0; axis < a.rank(); ++axis) {
            if (a.size(axis) == 1) continue;
            const int last = rank - 1;
            if (rank > 0 && step_a[last] == a.size(axis) * a.stride(axis) &&
                step_b[last] == b.size(axis) * b.stride(axis)) {
                size[last] *= a.size(axis);
                step_a[last] = a.stride(axis);
                step_b[last] = b.stride(axis);
            } else {
                size[rank] = a.size(axis);
                step_a[rank] = a.stride(axis);
                step_b[rank] = b.stride(axis);
                ++rank;
            }
        }
    }
};

struct Offsets {
    std::int64_t a, b;
};
__device__ Offsets offsets_of(const Layout& layout, std::int64_t index) {
    Offsets offsets{0, 0};
    for (int axis = layout.rank - 1; axis > 0; --axis) {
        const std::int64_t next = index / layout.size[axis];
        const std::int64_t place = index - next * layout.size[axis];
        offsets.a += place * layout.step_a[axis];
        offsets.b += place * layout.step_b[axis];
        index = next;
    }
    if (layout.rank > 0) {
        offsets.a += index * layout.step_a[0];
        offsets.b += index * layout.step_b[0];
    }
    return offsets;
}

template <class T>
__global__ void fill_kernel(T* x, T value, Layout layout, std::int64_t elements) {
    for (std::int64_t i = blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x; i < elements;
         i += std::int64_t{gridDim.x} * threads_per_block)
        x[offsets_of(layout, i).a] = value;
}

template <class To, class From>
__global__ void copy_kernel(To* to, const From* from, Layout layout, std::int64_t elements) {
    for (std::int64_t i = blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x; i < elements;
         i += std::int64_t{gridDim.x} * threads_per_block) {
        const Offsets at = offsets_of(layout, i);
        to[at.a] = device::convert<To>(from[at.b]);
    }
}

template <class Y, class X>
__global__ void axpy_kernel(Y* y, Accumulator<Y> alpha, const X* x, Layout layout, std::int64_t elements) {
    using Sum = Accumulator<Y>;
    for (std::int64_t i = blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x; i < elements;
         i += std::int64_t{gridDim.x} * threads_per_block) {
        const Offsets at = offsets_of(layout, i);
        y[at.a] = device::convert<Y>(device::convert<Sum>(y[at.a]) + alpha * device::convert<Sum>(x[at.b]));
    }
}

template <class F>
void visit_any(DType type, F&& f) {
    if (type == DType::i32) {
        f(TypeTag<std::int32_t>{});
    } else {
        visit_floating(type, f);
    }
}

/// Launches kernel(arguments..., layout, elements) over the elements of a.
template <class Kernel, class... Arguments>
void launch(const Context& ctx, Kernel kernel, const Tensor& a, const Tensor& b, Arguments... arguments) {
    const std::int64_t elements = a.elements();
    if (elements == 0) return;
    use_device(ctx.device());
    const auto blocks =
        static_cast<unsigned>(std::min(most_blocks, (elements + threads_per_block - 1) / threads_per_block));
    kernel<<<blocks, threads_per_block, 0, static_cast<cudaStream_t>(ctx.stream())>>>(arguments...,
                                                                                      Layout(a, b), elements);
    cuda_check(cudaGetLastError());
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
        launch(ctx, fill_kernel<T>, x, x, x.data<T>(), gradtile::convert<T>(value));
    });
}

void copy(const Context& ctx, const Tensor& destination, const Tensor& source) {
    visit_any(destination.dtype(), [&]<class To>(TypeTag<To>) {
        visit_any(source.dtype(), [&]<class From>(TypeTag<From>) {
            launch(ctx, copy_kernel<To, From>, destination, source, destination.data<To>(),
                   static_cast<const From*>(source.data<From>()));
        });
    });
}

void axpy(const Context& ctx, const Tensor& y, double alpha, const Tensor& x) {
    visit_floating(y.dtype(), [&]<class Y>(TypeTag<Y>) {
        visit_floating(x.dtype(), [&]<class X>(TypeTag<X>) {
            launch(ctx, axpy_kernel<Y, X>, y, x, y.data<Y>(), static_cast<Accumulator<Y>>(alpha),
                   static_cast<const X*>(x.data<X>()));
        });
    });
}

}  // namespace gradtile::cuda
