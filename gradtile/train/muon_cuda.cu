// Muon's element-wise passes on the GPU; its matrix products are gemm's.
#include <algorithm>

#include <gradtile/core/cuda_check.h>
#include <gradtile/train/muon_backend.h>
#include <gradtile/core/device/convert.cuh>

namespace gradtile::cuda {
namespace {

constexpr int threads_per_block = 256;
// Enough blocks to fill the largest GPU several times over; each then strides through the elements.
constexpr std::int64_t most_blocks = 8 * 1024;

__device__ std::int64_t first_element() {
    return blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x;
}
__device__ std::int64_t elements_apart() {
    return gridDim.x * std::int64_t{threads_per_block};
}

template <class Real>
__global__ void momentum_kernel(const Real* gradient, const double* scale, Real mix, Real* momentum,
                                Real* update, std::int64_t n) {
    const double factor = scale != nullptr ? *scale : 1.0;
    const bool refused = factor == 0.0;
    for (std::int64_t i = first_element(); i < n; i += elements_apart()) {
        if (refused) {
            update[i] = Real{0};
            continue;
        }
        const Real g = gradient[i] * static_cast<Real>(factor);
        const Real m = momentum[i] + mix * (g - momentum[i]);
        momentum[i] = m;
        update[i] = m + mix * (g - m);
    }
}

template <class T>
__global__ void divide_kernel(T* x, const double* norm, std::int64_t n) {
    using Real = Accumulator<T>;
    const auto factor = static_cast<Real>(1.0 / (*norm + 1e-7));
    for (std::int64_t i = first_element(); i < n; i += elements_apart())
        x[i] = device::convert<T>(device::convert<Real>(x[i]) * factor);
}

template <class Real>
__global__ void add_lower_powers_kernel(Real* polynomial, const Real* gram, std::int64_t side,
                                        std::int64_t n) {
    constexpr Real a = static_cast<Real>(Quintic::a), b = static_cast<Real>(Quintic::b),
                   c = static_cast<Real>(Quintic::c);
    for (std::int64_t i = first_element(); i < n; i += elements_apart()) {
        const Real sum = c * polynomial[i] + b * gram[i];
        const std::int64_t row = i / side;
        polynomial[i] = i - row * side == row % side ? sum + a : sum;
    }
}

template <class Real, class Value>
__global__ void apply_kernel(const Real* update, const double* rate, MuonRate derived, const double* scale,
                             Real* master, Value* value, std::int64_t n) {
    if (scale != nullptr && *scale == 0.0) return;
    const auto keep = static_cast<Real>(derived.keep(*rate));
    const auto step = static_cast<Real>(derived.step(*rate));
    for (std::int64_t i = first_element(); i < n; i += elements_apart()) {
        const Real updated = keep * master[i] - step * update[i];
        master[i] = updated;
        if constexpr (!std::is_same_v<Real, Value>) value[i] = device::convert<Value>(updated);
    }
}

/// Launches kernel(arguments..., n) over n elements.
template <class Kernel, class... Arguments>
void launch(const Context& ctx, std::int64_t n, Kernel kernel, Arguments... arguments) {
    if (n == 0) return;
    use_device(ctx.device());
    const auto blocks =
        static_cast<unsigned>(std::min(most_blocks, (n + threads_per_block - 1) / threads_per_block));
    kernel<<<blocks, threads_per_block, 0, static_cast<cudaStream_t>(ctx.stream())>>>(arguments..., n);
    cuda_check(cudaGetLastError());
}

const double* pointer_of(const Tensor& scale) {
    return scale.defined() ? scale.data<double>() : nullptr;
}

}  // namespace

void muon_momentum(const Context& ctx, const Tensor& gradient, const Tensor& scale, double momentum_decay,
                   const Tensor& momentum, const Tensor& update) {
    visit_floating(gradient.dtype(), [&]<class Real>(TypeTag<Real>) {
        if constexpr (sizeof(Real) >= 4)  // gradients are never shorter
            launch(ctx, gradient.elements(), momentum_kernel<Real>,
                   static_cast<const Real*>(gradient.data<Real>()), pointer_of(scale),
                   static_cast<Real>(1.0 - momentum_decay), momentum.data<Real>(), update.data<Real>());
    });
}

void divide_by_norm(const Context& ctx, const Tensor& x, const Tensor& norm) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        launch(ctx, x.elements(), divide_kernel<T>, x.data<T>(),
               static_cast<const double*>(norm.data<double>()));
    });
}

void add_lower_powers(const Context& ctx, const Tensor& polynomial, const Tensor& gram) {
    visit_floating(gram.dtype(), [&]<class Real>(TypeTag<Real>) {
        if constexpr (sizeof(Real) >= 4)
            launch(ctx, gram.elements(), add_lower_powers_kernel<Real>, polynomial.data<Real>(),
                   static_cast<const Real*>(gram.data<Real>()), gram.size(-1));
    });
}

void muon_apply(const Context& ctx, const Tensor& update, const Tensor& rate, const MuonRate& derived,
                const Tensor& master, const Tensor& value, const UpdateOptions& options) {
    visit_floating(value.dtype(), [&]<class Value>(TypeTag<Value>) {
        using Real = Accumulator<Value>;
        launch(ctx, update.elements(), apply_kernel<Real, Value>,
               static_cast<const Real*>(update.data<Real>()), static_cast<const double*>(rate.data<double>()),
               derived, pointer_of(options.gradient_scale), master.data<Real>(), value.data<Value>());
    });
}

}  // namespace gradtile::cuda
