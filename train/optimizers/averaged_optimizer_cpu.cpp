#include <gradtile/train/optimizers/internal/averaged_optimizer_backend.h>

namespace gradtile::cpu {
namespace {

bool is_refused(const Tensor& gradient_scale) {
    return gradient_scale.defined() && *gradient_scale.data<double>() == 0.0;
}

}  // namespace

void count_update(const Context&, const Tensor& updates, const Tensor& gradient_scale) {
    if (!is_refused(gradient_scale)) ++*updates.data<std::int32_t>();
}

void average_weights(const Context& ctx, const Tensor& weights, const Tensor& average,
                     const AverageStep& step) {
    if (is_refused(step.gradient_scale)) return;
    constexpr std::int64_t grain = 1 << 15;
    const double share = average_share(*step.updates.data<std::int32_t>(), step.decay);
    const auto add = [&]<class Real>(TypeTag<Real>) {
        parallel_ranges(ctx, weights.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
            const Real* const w = weights.data<Real>();
            Real* const sum = average.data<Real>();
            const Real factor = static_cast<Real>(share);
            for (std::int64_t i = begin; i < end; ++i) sum[i] += factor * (w[i] - sum[i]);
        });
    };
    if (weights.dtype() == DType::f64) {
        add(TypeTag<double>());
    } else {
        add(TypeTag<float>());
    }
}

}  // namespace gradtile::cpu
