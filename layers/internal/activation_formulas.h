#pragma once
/// The formulas of the activations for one element, on CPU and GPU. S is float or double. Math has the
/// functions of the device: sigmoid(x), times_normal(x) = x Phi(x), and normal(x), which returns a
/// vector_math::Normal.
///
/// A plain formula has value(x) and slope(x) = value'(x). A gated formula has value(gate, up) and
/// gradient(dy, gate, up).
#include <numbers>

#include <gradtile/core/dtype.h>
#include <gradtile/core/host_device.h>
#include <gradtile/layers/activation.h>

namespace gradtile::activation_formulas {

/// x/2 (1 + tanh(u/2)) = x sigmoid(u) with u = a x + b x^3, which costs one exponential.
template <class Math, class S>
struct GeluTanh {
    static constexpr S a = S(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    static constexpr S b = S(0.044715 * 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);

    GRADTILE_HOST_DEVICE static S value(S x) { return x * Math::sigmoid(x * (a + b * (x * x))); }
    GRADTILE_HOST_DEVICE static S slope(S x) {
        // Beyond 12 the sigmoid is 0 or 1 (to 1e-61), while x^2 may overflow.
        const S z = x > S(12) ? S(12) : (x < S(-12) ? S(-12) : x);
        const S square = z * z;
        const S s = Math::sigmoid(z * (a + b * square));
        return s + z * (s * (1 - s)) * (a + 3 * b * square);
    }
};

/// x Phi(x), whose slope is Phi(x) + x e^(-x^2/2) / sqrt(2 pi).
template <class Math, class S>
struct GeluExact {
    GRADTILE_HOST_DEVICE static S value(S x) { return Math::times_normal(x); }
    GRADTILE_HOST_DEVICE static S slope(S x) {
        constexpr S density = S(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
        const auto normal = Math::normal(x);
        return normal.distribution + x * density * normal.gaussian;
    }
};

/// silu(gate) * up with silu(g) = g sigmoid(g); silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g).
template <class Math, class S>
struct SwiGlu {
    struct Gradient {
        S gate, up;
    };
    GRADTILE_HOST_DEVICE static S value(S gate, S up) { return gate * Math::sigmoid(gate) * up; }
    GRADTILE_HOST_DEVICE static Gradient gradient(S dy, S gate, S up) {
        const S s = Math::sigmoid(gate);
        return {dy * up * s * (1 + gate * (1 - s)), dy * gate * s};
    }
};

/// max(x, 0)^2; NaN stays NaN.
template <class Math, class S>
struct ReluSquared {
    GRADTILE_HOST_DEVICE static S value(S x) { return x < S(0) ? S(0) : x * x; }
    GRADTILE_HOST_DEVICE static S slope(S x) { return x < S(0) ? S(0) : 2 * x; }
};

template <class Formula>
concept Gated = requires {
    typename Formula::Gradient;
};

namespace detail {
template <Activation activation, class Formula, class F>
void pass_formula(F&& f) {
    static_assert(Gated<Formula> == traits_of(activation).gated, "the formula contradicts activation_table");
    f(TypeTag<Formula>{});
}
}  // namespace detail

/// Calls f(TypeTag<Formula>{}) with the formula of `activation`.
template <class Math, class S, class F>
void visit(Activation activation, F&& f) {
    switch (activation) {
        case Activation::gelu_tanh:
            return detail::pass_formula<Activation::gelu_tanh, GeluTanh<Math, S>>(f);
        case Activation::gelu:
            return detail::pass_formula<Activation::gelu, GeluExact<Math, S>>(f);
        case Activation::swiglu:
            return detail::pass_formula<Activation::swiglu, SwiGlu<Math, S>>(f);
        case Activation::relu2:
            return detail::pass_formula<Activation::relu2, ReluSquared<Math, S>>(f);
    }
    throw Error("activation: this activation has no formula");
}

}  // namespace gradtile::activation_formulas
