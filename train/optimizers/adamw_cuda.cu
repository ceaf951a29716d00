// AdamW on the GPU: one small kernel decides, from what lies on the device, whether and how to update; one
// pass over weights, values, gradients, m and v does it.
#include <gradtile/train/optimizers/internal/adamw_backend.h>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/packed.cuh>

namespace gradtile::cuda {
namespace {

constexpr int threads_per_block = 256;
constexpr int width = 4;  // elements a thread loads at once: 16 bytes of float32
static_assert(64 % width == 0, "stretches are multiples of 64 elements");

/// What is known only on the device, in float64 as on the CPU; one of them in the optimizer's scratch.
struct StepFactors {
    double gradient_scale, keep, root_correction, step_size;  // gradient_scale 0: the update is refused
};

__global__ void prepare_kernel(StepFactors* factors, std::int32_t* updates, const double* gradient_scale,
                               const double* rate, AdamWOptions adamw) {
    device::await_predecessor();
    const double scale = gradient_scale != nullptr ? *gradient_scale : 1.0;
    factors->gradient_scale = scale;
    if (scale == 0.0) return;
    const std::int32_t t = ++*updates;
    const double lr = *rate;
    factors->keep = 1.0 - lr * adamw.weight_decay;
    factors->root_correction = 1.0 / sqrt(1.0 - pow(adamw.beta2, static_cast<double>(t)));
    factors->step_size = lr / (1.0 - pow(adamw.beta1, static_cast<double>(t)));
}

/// Numbers that no step changes, in the arithmetic's type.
template <class Real>
struct Constants {
    Real mix1, beta2, mix2, epsilon;
};

template <class Real, class Value>
struct Pointers {
    Real* weights;
    Value* values;  // the weights themselves when there is no master
    const Real* gradients;
    Real* m;
    Real* v;
};

template <class Real, class Value>
__global__ void __launch_bounds__(threads_per_block)
    update_kernel(Pointers<Real, Value> arrays, const AdamWBlock* blocks, const StepFactors* factors,
                  Constants<Real> c) {
    const AdamWBlock block = blocks[blockIdx.x];  // the same in every step
    device::await_predecessor();
    const StepFactors f = *factors;
    if (f.gradient_scale == 0.0) return;
    const Real scale = static_cast<Real>(f.gradient_scale);
    const Real keep = block.decays != 0 ? static_cast<Real>(f.keep) : Real{1};
    const Real root_correction = static_cast<Real>(f.root_correction);
    const Real step_size = static_cast<Real>(f.step_size);
    using Reals = device::Packed<Real, width>;
    using Values = device::Packed<Value, width>;

    for (std::int64_t i = threadIdx.x * width; i < block.length; i += threads_per_block * width) {
        auto* const weights = reinterpret_cast<Reals*>(arrays.weights + block.weight + i);
        const auto* const gradients = reinterpret_cast<const Reals*>(arrays.gradients + block.gradient + i);
        auto* const ms = reinterpret_cast<Reals*>(arrays.m + block.state + i);
        auto* const vs = reinterpret_cast<Reals*>(arrays.v + block.state + i);
        Reals w = *weights, m = *ms, v = *vs;
        const Reals gradient = *gradients;
#pragma unroll
        for (int j = 0; j < width; ++j) {
            const Real g = gradient[j] * scale;
            m[j] = m[j] + c.mix1 * (g - m[j]);
            v[j] = v[j] * c.beta2 + c.mix2 * g * g;
            w[j] = w[j] * keep - step_size * m[j] / (sqrt(v[j]) * root_correction + c.epsilon);
        }
        *weights = w;
        *ms = m;
        *vs = v;
        if constexpr (!std::is_same_v<Real, Value>) {
            Values rounded;
#pragma unroll
            for (int j = 0; j < width; ++j) rounded[j] = device::convert<Value>(w[j]);
            *reinterpret_cast<Values*>(arrays.values + block.value + i) = rounded;
        }
    }
}

}  // namespace

void adamw_step(const Context& ctx, const AdamWArrays& arrays, const AdamWBlocks& blocks,
                const Tensor& updates, const Tensor& rate, const AdamWOptions& adamw,
                const UpdateOptions& options) {
    auto* const factors = reinterpret_cast<StepFactors*>(blocks.scratch.raw_data());
    const double* const scale =
        options.gradient_scale.defined() ? options.gradient_scale.data<double>() : nullptr;
    launch(ctx, prepare_kernel, dim3(1), Block{.threads = 1, .starts_early = true}, factors,
           updates.data<std::int32_t>(), scale, static_cast<const double*>(rate.data<double>()), adamw);
    if (blocks.list.empty()) return;
    visit_floating(arrays.values.dtype(), [&]<class Value>(TypeTag<Value>) {
        using Real = Accumulator<Value>;
        const Pointers<Real, Value> pointers{arrays.weights.data<Real>(), arrays.values.data<Value>(),
                                             arrays.gradients.data<Real>(), arrays.m.data<Real>(),
                                             arrays.v.data<Real>()};
        const Constants<Real> constants{static_cast<Real>(1.0 - adamw.beta1), static_cast<Real>(adamw.beta2),
                                        static_cast<Real>(1.0 - adamw.beta2),
                                        static_cast<Real>(adamw.epsilon)};
        launch(ctx, update_kernel<Real, Value>, dim3(static_cast<unsigned>(blocks.list.size())),
               Block{.threads = threads_per_block, .starts_early = true}, pointers,
               reinterpret_cast<const AdamWBlock*>(blocks.on_device.raw_data()), factors, constants);
    });
}

}  // namespace gradtile::cuda
