#include <gradtile/core/cpu/lanes.h>
#include <gradtile/core/cpu/vector_math.h>
#include <gradtile/core/internal/strided_rows.h>
#include <gradtile/core/internal/tensor_math_backend.h>
#include <gradtile/core/internal/unknown_enumerator.h>

namespace gradtile::cpu {
namespace {

/// y = op(x) for each element, computed in the accumulator's type.
template <class Op>
void map(const Context& ctx, const Tensor& y, const Tensor& x, Op op) {
    const std::int64_t step = last_stride(x);
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        using Real = Accumulator<T>;
        T* to = y.data<T>();
        const T* from = x.data<T>();
        const auto map_row = [&](std::int64_t y_offset, std::int64_t x_offset, std::int64_t count) {
            T* ys = to + y_offset;
            const T* xs = from + x_offset;
            if (step == 1) {  // a loop that vectorises
                for (std::int64_t i = 0; i < count; ++i) ys[i] = convert<T>(op(convert<Real>(xs[i])));
            } else {
                for (std::int64_t i = 0; i < count; ++i) ys[i] = convert<T>(op(convert<Real>(xs[i * step])));
            }
        };
        for_rows(ctx, map_row, y, x);
    });
}

template <class Op>
void combine_with(const Context& ctx, const Tensor& y, const Tensor& a, const Tensor& b, Op op) {
    const std::int64_t a_step = last_stride(a), b_step = last_stride(b);
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        using Real = Accumulator<T>;
        T* to = y.data<T>();
        const T *from_a = a.data<T>(), *from_b = b.data<T>();
        const auto combined = [&](T left, T right) {
            return convert<T>(op(convert<Real>(left), convert<Real>(right)));
        };
        const auto combine_row = [&](std::int64_t y_offset, std::int64_t a_offset, std::int64_t b_offset,
                                     std::int64_t count) {
            T* ys = to + y_offset;
            const T *as = from_a + a_offset, *bs = from_b + b_offset;
            if (a_step == 1 && b_step == 1) {  // a loop that vectorises
                for (std::int64_t i = 0; i < count; ++i) ys[i] = combined(as[i], bs[i]);
            } else {
                for (std::int64_t i = 0; i < count; ++i) ys[i] = combined(as[i * a_step], bs[i * b_step]);
            }
        };
        for_rows(ctx, combine_row, y, a, b);
    });
}

template <class T>
Accumulator<T> sum_of(const T* x, std::int64_t n) {
    Lanes<Accumulator<T>> lanes;
    for_lanes(n, [&](std::int64_t i, int lane) { lanes[lane] += convert<Accumulator<T>>(x[i]); });
    return lanes.sum();
}

template <class T>
T max_of(const T* x, std::int64_t n) {
    using Real = Accumulator<T>;
    // The result is NaN if a or b is NaN.
    const auto larger = [](Real a, Real b) { return a != a || a >= b ? a : b; };
    Lanes<Real> lanes(-std::numeric_limits<Real>::infinity());
    for_lanes(n, [&](std::int64_t i, int lane) { lanes[lane] = larger(lanes[lane], convert<Real>(x[i])); });
    return convert<T>(lanes.fold(larger));
}

/// y[r] = reduce(row r of x).
template <class To, class From, class Reduce>
void for_each_row(const Context& ctx, To* ys, const From* xs, const Shape& shape, Reduce reduce) {
    const std::int64_t n = shape[1], grain = std::max<std::int64_t>(1, elements_per_block / (n + 1));
    parallel_ranges(ctx, shape[0], grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) ys[r] = reduce(xs + r * n, n);
    });
}

}  // namespace

void combine(const Context& ctx, const Tensor& y, const Tensor& a, const Tensor& b, Arithmetic op) {
    switch (op) {
        case Arithmetic::add:
            return combine_with(ctx, y, a, b, [](auto left, auto right) { return left + right; });
        case Arithmetic::subtract:
            return combine_with(ctx, y, a, b, [](auto left, auto right) { return left - right; });
        case Arithmetic::multiply:
            return combine_with(ctx, y, a, b, [](auto left, auto right) { return left * right; });
        case Arithmetic::divide:
            return combine_with(ctx, y, a, b, [](auto left, auto right) { return left / right; });
    }
    refuse_unknown("tensor_math: unknown arithmetic");
}

void scale(const Context& ctx, const Tensor& y, const Tensor& x, double factor) {
    map(ctx, y, x, [&]<class Real>(Real value) { return static_cast<Real>(factor) * value; });
}

void apply(const Context& ctx, const Tensor& y, const Tensor& x, MathFunction function) {
    switch (function) {
        case MathFunction::exp:
            return map(ctx, y, x, [](auto value) { return vector_math::exp(value); });
        case MathFunction::log:
            return map(ctx, y, x, [](auto value) { return vector_math::log(value); });
    }
    refuse_unknown("tensor_math: unknown function");
}

void reduce_rows(const Context& ctx, const Tensor& y, const Tensor& x, Reduction reduction) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        const T* const rows = x.data<T>();
        if (reduction == Reduction::sum) {
            for_each_row(ctx, y.data<Accumulator<T>>(), rows, x.shape(), sum_of<T>);
        } else {
            for_each_row(ctx, y.data<T>(), rows, x.shape(), max_of<T>);
        }
    });
}

}  // namespace gradtile::cpu
