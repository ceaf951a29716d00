#pragma once
/// GELU and its slope along a row, for the CPU operators that apply it by itself or behind a matrix product.
#include <cstdint>
#include <numbers>

#include <gradtile/core/vector_math.h>
#include <gradtile/layers/gelu.h>

namespace gradtile::cpu {

/// x/2 (1 + tanh(u/2)) = x sigmoid(u) with u = a x + b x^3, which costs one exponential.
template <class S>
struct GeluTanh {
    static constexpr S a = S(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    static constexpr S b = S(0.044715 * 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);

    static S value(S x) { return x * vector_math::sigmoid(x * (a + b * (x * x))); }
    static S slope(S x) {
        // Beyond 12 the sigmoid is 0 or 1 (to 1e-61), while x^2 may overflow.
        const S z = x > S(12) ? S(12) : (x < S(-12) ? S(-12) : x);
        const S square = z * z;
        const S s = vector_math::sigmoid(z * (a + b * square));
        return s + z * (s * (1 - s)) * (a + 3 * b * square);
    }
};

/// x Phi(x), whose slope is Phi(x) + x e^(-x^2/2) / sqrt(2 pi).
template <class S>
struct GeluExact {
    static S value(S x) { return x * vector_math::normal(x).distribution; }
    static S slope(S x) {
        constexpr S density = S(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
        const vector_math::Normal<S> normal = vector_math::normal(x);
        return normal.distribution + x * density * normal.gaussian;
    }
};

template <class T, class Form>
void gelu_row(T* y, const T* x, std::int64_t width) {
    using S = Accumulator<T>;
#pragma GCC ivdep  // y may be x itself
    for (std::int64_t i = 0; i < width; ++i) y[i] = convert<T>(Form::value(convert<S>(x[i])));
}

template <class T, class Form>
void gelu_row_backward(T* dx, const T* dy, const T* x, std::int64_t width) {
    using S = Accumulator<T>;
#pragma GCC ivdep  // dx may be dy itself
    for (std::int64_t i = 0; i < width; ++i)
        dx[i] = convert<T>(convert<S>(dy[i]) * Form::slope(convert<S>(x[i])));
}

/// Calls f with the form's type as a tag: visit_gelu<float>(form, []<class Form>(TypeTag<Form>) { .. }).
template <class S, class F>
void visit_gelu(Gelu::Form form, F&& f) {
    if (form == Gelu::Form::tanh) {
        f(TypeTag<GeluTanh<S>>{});
    } else {
        f(TypeTag<GeluExact<S>>{});
    }
}

}  // namespace gradtile::cpu
