#pragma once
/// Activation formulas for one element, on CPU and GPU. S is float or double. Math has the device's
/// functions: sigmoid(x), which is scaled_sigmoid(sigmoid_factor<S> * x), times_normal(x) = x Phi(x), and
/// normal(x), which returns a vector_math::Normal.
///
/// A plain formula has value(x) and slope(x) = value'(x). A gated formula has value(gate, up) and
/// gradient(dy, gate, up).
#include <numbers>

#include <gradtile/core/dtype.h>
#include <gradtile/core/host_device.h>
#include <gradtile/core/internal/unknown_enumerator.h>
#include <gradtile/layers/activation.h>

namespace gradtile::activation_formulas {

/// x/2 (1 + tanh(u/2)) = x sigmoid(u) with u = a x + b x^3, which costs one exponential.
template <class Math, class S>
struct GeluTanh {
    static constexpr S a = S(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    static constexpr S b = S(0.044715 * 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);

    GRADTILE_HOST_DEVICE static S value(S x) { return value_at(x, Math::scaled_sigmoid(scaled_logit(x))); }
    GRADTILE_HOST_DEVICE static S slope(S x) {
        const S z = clamped(x);
        return slope_at(z, Math::scaled_sigmoid(scaled_logit(z)));
    }

    // The parts, for kernels that compute several sigmoids at once: value(x) is value_at(x, s) and slope(x)
    // is slope_at(z, s), where s is the sigmoid that belongs to x or to z = clamped(x).
    GRADTILE_HOST_DEVICE static S scaled_logit(S x) {
        constexpr S factor = Math::template sigmoid_factor<S>;
        return x * (a * factor + b * factor * (x * x));
    }
    GRADTILE_HOST_DEVICE static S value_at(S x, S s) { return x * s; }
    /// Beyond the limit the sigmoid is 0 or 1 (to 1e-61), while x^2 may overflow.
    static constexpr S limit = 12;
    GRADTILE_HOST_DEVICE static S clamped(S x) { return x > limit ? S(limit) : (x < -limit ? S(-limit) : x); }
    GRADTILE_HOST_DEVICE static S slope_at(S z, S s) {
        return s + s * ((1 - s) * (z * (a + 3 * b * (z * z))));
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
    GRADTILE_HOST_DEVICE static S value(S gate, S up) { return value_at(gate, up, Math::sigmoid(gate)); }
    GRADTILE_HOST_DEVICE static Gradient gradient(S dy, S gate, S up) {
        return gradient_at(dy, gate, up, Math::sigmoid(gate));
    }

    // The same with s = sigmoid(gate), for kernels that compute several sigmoids at once.
    GRADTILE_HOST_DEVICE static S value_at(S gate, S up, S s) { return gate * s * up; }
    GRADTILE_HOST_DEVICE static Gradient gradient_at(S dy, S gate, S up, S s) {
        const S left = dy * s, right = left * up;
        return {right + right * (gate * (1 - s)), left * gate};
    }
};

/// gelu_tanh(gate) * up.
template <class Math, class S>
struct GeGluTanh {
    struct Gradient {
        S gate, up;
    };
    GRADTILE_HOST_DEVICE static S value(S gate, S up) { return GeluTanh<Math, S>::value(gate) * up; }
    GRADTILE_HOST_DEVICE static Gradient gradient(S dy, S gate, S up) {
        return {dy * up * GeluTanh<Math, S>::slope(gate), dy * GeluTanh<Math, S>::value(gate)};
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
GRADTILE_CALLS_EITHER_DEVICE
template <Activation activation, class Formula, class F>
GRADTILE_HOST_DEVICE decltype(auto) pass_formula(F&& f) {
    static_assert(Gated<Formula> == traits_of(activation).gated, "the formula contradicts activation_table");
    return f(TypeTag<Formula>{});
}
}  // namespace detail

/// Returns f(TypeTag<Formula>{}) with `activation`'s formula. No other code has a switch over activations.
GRADTILE_CALLS_EITHER_DEVICE
template <class Math, class S, class F>
GRADTILE_HOST_DEVICE decltype(auto) visit(Activation activation, F&& f) {
    switch (activation) {
        case Activation::gelu_tanh:
            return detail::pass_formula<Activation::gelu_tanh, GeluTanh<Math, S>>(f);
        case Activation::gelu:
            return detail::pass_formula<Activation::gelu, GeluExact<Math, S>>(f);
        case Activation::swiglu:
            return detail::pass_formula<Activation::swiglu, SwiGlu<Math, S>>(f);
        case Activation::relu2:
            return detail::pass_formula<Activation::relu2, ReluSquared<Math, S>>(f);
        case Activation::geglu_tanh:
            return detail::pass_formula<Activation::geglu_tanh, GeGluTanh<Math, S>>(f);
    }
    refuse_unknown("activation: this activation has no formula");
}

}  // namespace gradtile::activation_formulas
