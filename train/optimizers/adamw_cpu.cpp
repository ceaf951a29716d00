#include <algorithm>
#include <cmath>

#include <gradtile/train/optimizers/internal/adamw_backend.h>

namespace gradtile::cpu {
namespace {

template <class Real>
struct Coefficients {
    Real gradient_scale, mix1, beta2, mix2, root_correction, epsilon, step_size;
};

/// `value` is written when it is another array than `weight`, the master it is rounded from.
template <class Real, class Value>
void update(Real* __restrict weight, Value* __restrict value, const Real* __restrict gradient,
            Real* __restrict m, Real* __restrict v, std::int64_t n, Real keep, const Coefficients<Real>& k) {
    const Coefficients<Real> c = k;  // a copy, so that stores to the arrays cannot be thought to change it
    for (std::int64_t i = 0; i < n; ++i) {
        const Real g = gradient[i] * c.gradient_scale;
        const Real first = m[i] + c.mix1 * (g - m[i]);
        const Real second = v[i] * c.beta2 + c.mix2 * g * g;
        const Real updated =
            weight[i] * keep - c.step_size * first / (std::sqrt(second) * c.root_correction + c.epsilon);
        m[i] = first;
        v[i] = second;
        weight[i] = updated;
        if constexpr (!std::is_same_v<Real, Value>) value[i] = convert<Value>(updated);
    }
}

template <class Real, class Value>
void step_of_type(const Context& ctx, const AdamWArrays& arrays, const std::vector<AdamWBlock>& blocks,
                  double lr, double decay, const Coefficients<Real>& c) {
    Real* weights = arrays.weights.data<Real>();
    Value* values = arrays.values.data<Value>();
    const Real* gradients = arrays.gradients.data<Real>();
    Real* m = arrays.m.data<Real>();
    Real* v = arrays.v.data<Real>();
    parallel_for(ctx, static_cast<std::int64_t>(blocks.size()), [&](std::int64_t index) {
        const AdamWBlock& block = blocks[static_cast<std::size_t>(index)];
        const Real keep = block.decays != 0 ? static_cast<Real>(1.0 - lr * decay) : Real{1};
        update(weights + block.weight, values + block.value, gradients + block.gradient, m + block.state,
               v + block.state, block.length, keep, c);
    });
}

}  // namespace

void adamw_step(const Context& ctx, const AdamWArrays& arrays, const AdamWBlocks& blocks,
                const Tensor& updates, const Tensor& rate, const AdamWOptions& adamw,
                const UpdateOptions& options) {
    const double lr = *rate.data<double>();
    const double scale = options.gradient_scale.defined() ? *options.gradient_scale.data<double>() : 1.0;
    if (scale == 0.0) return;
    const std::int32_t t = ++*updates.data<std::int32_t>();
    const double correction1 = 1.0 - std::pow(adamw.beta1, t);
    const double correction2 = 1.0 - std::pow(adamw.beta2, t);
    visit_floating(arrays.values.dtype(), [&]<class Value>(TypeTag<Value>) {
        using Real = Accumulator<Value>;
        const Coefficients<Real> c{.gradient_scale = static_cast<Real>(scale),
                                   .mix1 = static_cast<Real>(1.0 - adamw.beta1),
                                   .beta2 = static_cast<Real>(adamw.beta2),
                                   .mix2 = static_cast<Real>(1.0 - adamw.beta2),
                                   .root_correction = static_cast<Real>(1.0 / std::sqrt(correction2)),
                                   .epsilon = static_cast<Real>(adamw.epsilon),
                                   .step_size = static_cast<Real>(lr / correction1)};
        step_of_type<Real, Value>(ctx, arrays, blocks.list, lr, adamw.weight_decay, c);
    });
}

}  // namespace gradtile::cpu
