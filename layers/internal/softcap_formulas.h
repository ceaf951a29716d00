#pragma once
/// The formulas behind LogitSoftcap for one logit, on CPU and GPU. S is float or double. Math has the
/// device's tanh(x) and reciprocal_sqrt(x).
#include <gradtile/core/host_device.h>
#include <gradtile/layers/cross_entropy_head.h>

namespace gradtile {

/// A limited logit, and its derivative with respect to the logit.
template <class S>
struct CappedLogit {
    S value, slope;
};

/// No limit: the logit itself.
struct NoSoftcap {
    template <class S>
    GRADTILE_HOST_DEVICE CappedLogit<S> operator()(S x) const {
        return {x, S(1)};
    }
};

/// y = c tanh(x / c), with dy/dx = 1 - (y / c)^2.
template <class Math, class S>
struct TanhSoftcap {
    S limit, inverse;

    GRADTILE_HOST_DEVICE CappedLogit<S> operator()(S x) const {
        const S t = Math::tanh(x * inverse);
        return {limit * t, (1 - t) * (1 + t)};
    }
};

/// y = x / sqrt(1 + (x / c)^2), with dy/dx = (1 + (x / c)^2)^(-3/2).
template <class Math, class S>
struct RootSoftcap {
    S limit, inverse;

    GRADTILE_HOST_DEVICE CappedLogit<S> operator()(S x) const {
        S r = x * inverse;
        // Beyond this bound the result is the limit, and r^2 might overflow. NaN stays NaN.
        constexpr S bound = S(1e9);
        r = r > bound ? bound : (r < -bound ? -bound : r);
        const S root = Math::reciprocal_sqrt(1 + r * r);
        return {limit * (r * root), root * root * root};
    }
};

/// Calls `visitor` with the formula. Each has a type of its own, because kernels evaluate it in inner loops.
template <class Math, class S, class Visitor>
void visit_softcap(const LogitSoftcap& softcap, Visitor&& visitor) {
    const S limit = static_cast<S>(softcap.limit), inverse = static_cast<S>(1 / softcap.limit);
    if (softcap.limit == 0) return visitor(NoSoftcap());
    if (softcap.form == SoftcapForm::tanh) return visitor(TanhSoftcap<Math, S>{limit, inverse});
    visitor(RootSoftcap<Math, S>{limit, inverse});
}

}  // namespace gradtile
