#include <algorithm>

#include <gradtile/train/muon_backend.h>

namespace gradtile::cpu {
namespace {

constexpr std::int64_t grain = 1 << 14;

double value_of(const Tensor& scale) {
    return scale.defined() ? *scale.data<double>() : 1.0;
}

template <class Real>
void momentum_range(const Real* __restrict gradient, Real* __restrict momentum, Real* __restrict update,
                    std::int64_t n, Real scale, Real mix) {
    for (std::int64_t i = 0; i < n; ++i) {
        const Real g = gradient[i] * scale;
        const Real m = momentum[i] + mix * (g - momentum[i]);
        momentum[i] = m;
        update[i] = m + mix * (g - m);
    }
}

/// A row of b A + c A^2.
template <class Real>
void add_linear(const Real* __restrict power, Real* __restrict sum, std::int64_t n) {
    constexpr Real b = static_cast<Real>(Quintic::b), c = static_cast<Real>(Quintic::c);
    for (std::int64_t i = 0; i < n; ++i) sum[i] = c * sum[i] + b * power[i];
}

template <class Real, class Value>
void apply_range(const Real* __restrict update, Real* __restrict master, Value* __restrict value,
                 std::int64_t n, Real keep, Real rate) {
    for (std::int64_t i = 0; i < n; ++i) {
        const Real updated = keep * master[i] - rate * update[i];
        master[i] = updated;
        if constexpr (!std::is_same_v<Real, Value>) value[i] = convert<Value>(updated);
    }
}

}  // namespace

void muon_momentum(const Context& ctx, const Tensor& gradient, const Tensor& scale, double momentum_decay,
                   const Tensor& momentum, const Tensor& update) {
    const double factor = value_of(scale);
    visit_floating(gradient.dtype(), [&]<class Real>(TypeTag<Real>) {
        if constexpr (sizeof(Real) >= 4) {
            const Real* g = gradient.data<Real>();
            Real* m = momentum.data<Real>();
            Real* u = update.data<Real>();
            parallel_ranges(ctx, gradient.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
                if (factor == 0.0) {
                    std::fill(u + begin, u + end, Real{0});
                } else {
                    momentum_range(g + begin, m + begin, u + begin, end - begin, static_cast<Real>(factor),
                                   static_cast<Real>(1.0 - momentum_decay));
                }
            });
        }
    });
}

void divide_by_norm(const Context& ctx, const Tensor& x, const Tensor& norm) {
    const double factor = 1.0 / (*norm.data<double>() + 1e-7);
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        T* elements = x.data<T>();
        parallel_ranges(ctx, x.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
            const auto f = static_cast<Accumulator<T>>(factor);
            for (std::int64_t i = begin; i < end; ++i)
                elements[i] = convert<T>(convert<Accumulator<T>>(elements[i]) * f);
        });
    });
}

void add_lower_powers(const Context& ctx, const Tensor& polynomial, const Tensor& gram) {
    const std::int64_t n = gram.size(-1);
    visit_floating(gram.dtype(), [&]<class T>(TypeTag<T>) {
        if constexpr (sizeof(T) >= 4) {
            const T* const powers = gram.data<T>();
            T* const sums = polynomial.data<T>();
            const std::int64_t rows = gram.elements() / std::max<std::int64_t>(1, n);
            parallel_ranges(ctx, rows, std::max<std::int64_t>(1, grain / std::max<std::int64_t>(1, n)),
                            [&](std::int64_t begin, std::int64_t end) {
                                for (std::int64_t row = begin; row < end; ++row) {
                                    add_linear(powers + row * n, sums + row * n, n);
                                    sums[row * n + row % n] += static_cast<T>(Quintic::a);
                                }
                            });
        }
    });
}

void muon_apply(const Context& ctx, const Tensor& update, const Tensor& rate, const MuonRate& derived,
                const Tensor& master, const Tensor& value, const UpdateOptions& options) {
    if (value_of(options.gradient_scale) == 0.0) return;
    const double keep = derived.keep(*rate.data<double>()), step = derived.step(*rate.data<double>());
    visit_floating(value.dtype(), [&]<class Value>(TypeTag<Value>) {
        using Real = Accumulator<Value>;
        const Real* u = update.data<Real>();
        Real* w = master.data<Real>();
        Value* v = value.data<Value>();
        parallel_ranges(ctx, update.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
            apply_range(u + begin, w + begin, v + begin, end - begin, static_cast<Real>(keep),
                        static_cast<Real>(step));
        });
    });
}

}  // namespace gradtile::cpu
