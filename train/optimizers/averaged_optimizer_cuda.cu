// The average of the weights on the GPU, in one pass over memory. The update count is in device memory, so
// that a captured step can be replayed.
#include <gradtile/train/optimizers/internal/averaged_optimizer_backend.h>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/packed.cuh>

namespace gradtile::cuda {
namespace {

constexpr int threads_per_block = 256;
constexpr int width = 4;               // elements that a thread loads at once: 16 bytes of float32
constexpr int vectors_per_thread = 4;  // independent loads in flight
static_assert(parameter_alignment % width == 0, "pieces are multiples of 64 elements");

__global__ void count_kernel(std::int32_t* updates, const double* gradient_scale) {
    device::await_predecessor();
    if (gradient_scale == nullptr || *gradient_scale != 0.0) ++*updates;
}

template <class Real>
__global__ void __launch_bounds__(threads_per_block)
    average_kernel(const Real* weights, Real* average, std::int64_t vectors, const std::int32_t* updates,
                   double decay, const double* gradient_scale) {
    using Vector = device::Packed<Real, width>;
    device::await_predecessor();
    if (gradient_scale != nullptr && *gradient_scale == 0.0) return;
    const Real share = static_cast<Real>(average_share(*updates, decay));
    const std::int64_t first =
        std::int64_t{blockIdx.x} * threads_per_block * vectors_per_thread + threadIdx.x;
#pragma unroll
    for (int i = 0; i < vectors_per_thread; ++i) {
        const std::int64_t index = first + i * threads_per_block;
        if (index >= vectors) return;
        const Vector w = reinterpret_cast<const Vector*>(weights)[index];
        Vector sum = reinterpret_cast<const Vector*>(average)[index];
#pragma unroll
        for (int j = 0; j < width; ++j) sum[j] += share * (w[j] - sum[j]);
        reinterpret_cast<Vector*>(average)[index] = sum;
    }
}

const double* scale_of(const Tensor& gradient_scale) {
    return gradient_scale.defined() ? gradient_scale.data<double>() : nullptr;
}

template <class Real>
void average_weights_of_type(const Context& ctx, const Tensor& weights, const Tensor& average,
                             const AverageStep& step) {
    const std::int64_t vectors = weights.elements() / width;
    launch(ctx, average_kernel<Real>, blocks_for(vectors, threads_per_block * vectors_per_thread),
           Block{.threads = threads_per_block, .starts_early = true},
           static_cast<const Real*>(weights.data<Real>()), average.data<Real>(), vectors,
           static_cast<const std::int32_t*>(step.updates.data<std::int32_t>()), step.decay,
           scale_of(step.gradient_scale));
}

}  // namespace

void count_update(const Context& ctx, const Tensor& updates, const Tensor& gradient_scale) {
    launch(ctx, count_kernel, dim3(1), Block{.threads = 1, .starts_early = true},
           updates.data<std::int32_t>(), scale_of(gradient_scale));
}

void average_weights(const Context& ctx, const Tensor& weights, const Tensor& average,
                     const AverageStep& step) {
    if (weights.elements() == 0) return;
    if (weights.dtype() == DType::f64) {
        average_weights_of_type<double>(ctx, weights, average, step);
    } else {
        average_weights_of_type<float>(ctx, weights, average, step);
    }
}

}  // namespace gradtile::cuda
