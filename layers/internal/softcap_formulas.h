#pragma once
/// The formulas behind LogitSoftcap for one logit, on CPU and GPU. S is float or double. Math has the
/// device's tanh(x) and sqrt(x).
#include <gradtile/core/host_device.h>
#include <gradtile/layers/cross_entropy_head.h>

namespace gradtile {

/// No limit: the logit itself.
struct NoSoftcap {
    template <class S>
    GRADTILE_HOST_DEVICE S value(S x) const {
        return x;
    }
    template <class S>
    GRADTILE_HOST_DEVICE S slope(S) const {
        return S(1);
    }
};

template <class Math, class S>
struct Softcap {
    S limit, inverse;
    bool is_root;

    explicit Softcap(const LogitSoftcap& cap)
        : limit(static_cast<S>(cap.limit)),
          inverse(static_cast<S>(1 / cap.limit)),
          is_root(cap.form == SoftcapForm::root) {}

    GRADTILE_HOST_DEVICE S value(S x) const {
        S r = x * inverse;
        if (!is_root) return limit * Math::tanh(r);
        // Beyond this bound the result is the limit, and r^2 might overflow. NaN stays NaN.
        constexpr S bound = S(1e9);
        r = r > bound ? bound : (r < -bound ? -bound : r);
        return limit * (r / Math::sqrt(1 + r * r));
    }
    /// The derivative where the value is y: 1 - (y/c)^2 for tanh, and (1 + (x/c)^2)^(-3/2) = (1 -
    /// (y/c)^2)^(3/2) for root.
    GRADTILE_HOST_DEVICE S slope(S y) const {
        const S r = y * inverse, rest = 1 - r * r;
        const S positive = rest > S(0) ? rest : S(0);
        return is_root ? positive * Math::sqrt(positive) : positive;
    }
};

}  // namespace gradtile
