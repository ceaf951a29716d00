#include <array>

#include <gradtile/core/cpu/lanes.h>
#include <gradtile/core/internal/data_or_null.h>
#include <gradtile/layers/internal/weighted_sum_backend.h>

namespace gradtile::cpu {
namespace {

/// Elements per block, and per partial sum.
constexpr std::int64_t block_elements = 1 << 14;

template <class T>
struct Term {
    const T* x = nullptr;
    T* gradient = nullptr;
    Accumulator<T> factor = 0;
    bool adds = false;
};

template <class T>
std::vector<Term<T>> pointers_of(std::span<const WeightedTerm> terms) {
    std::vector<Term<T>> all;
    for (const WeightedTerm& term : terms)
        all.push_back({.x = term.x.data<T>(),
                       .gradient = data_or_null<T>(term.gradient),
                       .factor = convert<Accumulator<T>>(*term.factor.data<T>()),
                       .adds = term.adds_to_gradient});
    return all;
}

/// y = sum_k factor_k x_k over [begin, end).
template <class T>
void sum_block(T* __restrict y, const std::vector<Term<T>>& terms, std::int64_t begin, std::int64_t end) {
    using S = Accumulator<T>;
    constexpr std::int64_t piece = 256;
    for (; begin < end; begin += piece) {
        const std::int64_t count = std::min(piece, end - begin);
        std::array<S, piece> sums{};
        for (const Term<T>& term : terms) {
            const T* __restrict x = term.x + begin;
            const S factor = term.factor;
            for (std::int64_t i = 0; i < count; ++i)
                sums[static_cast<std::size_t>(i)] += factor * convert<S>(x[i]);
        }
        for (std::int64_t i = 0; i < count; ++i) y[begin + i] = convert<T>(sums[static_cast<std::size_t>(i)]);
    }
}

/// gradient (+)= factor dy; gradient may be dy.
template <bool adds, class T>
void write_gradient(T* gradient, const T* dy, Accumulator<T> factor, std::int64_t begin, std::int64_t end) {
    using S = Accumulator<T>;
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) {
        S value = factor * convert<S>(dy[i]);
        if constexpr (adds) value += convert<S>(gradient[i]);
        gradient[i] = convert<T>(value);
    }
}

/// The sum of dy x over [begin, end).
template <class T, class S = Accumulator<T>>
S dot(const T* __restrict dy, const T* __restrict x, std::int64_t begin, std::int64_t end) {
    Lanes<S> sums;
    for_lanes(end - begin, [&](std::int64_t i, int lane) {
        sums[lane] += convert<S>(dy[begin + i]) * convert<S>(x[begin + i]);
    });
    return sums.sum();
}

}  // namespace

void weighted_sum(const Context& ctx, const Tensor& y, std::span<const WeightedTerm> terms) {
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        const std::vector<Term<T>> all = pointers_of<T>(terms);
        parallel_ranges(ctx, y.elements(), block_elements, [&](std::int64_t begin, std::int64_t end) {
            sum_block(y.data<T>(), all, begin, end);
        });
    });
}

std::int64_t weighted_sum_parts(std::int64_t elements) {
    return ceil_div(elements, block_elements);
}

void weighted_sum_backward(const Context& ctx, const Tensor& partials, const Tensor& dy,
                           std::span<const WeightedTerm> terms) {
    visit_floating(dy.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        const std::vector<Term<T>> all = pointers_of<T>(terms);
        const T* const d = dy.data<T>();
        S* const sums = partials.data<S>();
        const std::int64_t parts = partials.size(1);
        parallel_ranges(ctx, dy.elements(), block_elements, [&](std::int64_t begin, std::int64_t end) {
            // The first term's gradient may be dy, so it is written last.
            for (std::size_t k = all.size(); k-- > 0;) {
                const Term<T>& term = all[k];
                sums[static_cast<std::int64_t>(k) * parts + begin / block_elements] =
                    dot(d, term.x, begin, end);
                if (k > 0)
                    (term.adds ? write_gradient<true, T> : write_gradient<false, T>)(term.gradient, d,
                                                                                     term.factor, begin, end);
            }
            write_gradient<false>(all[0].gradient, d, all[0].factor, begin, end);
        });
    });
}

}  // namespace gradtile::cpu
