#pragma once
/// Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2): every weight moves
/// by the learning rate, in the direction of a momentum's sign:
///
///     w = (1 - lr decay) w - lr sign(beta1 m + (1 - beta1) g)             m = beta2 m + (1 - beta2) g
///
/// The authors take a learning rate 3 to 10 times below AdamW's, and as many times its weight decay.
#include <array>
#include <cstdint>
#include <string_view>

#include <gradtile/core/host_device.h>
#include <gradtile/core/range.h>

namespace gradtile {

/// A rule for an ElementwiseOptimizer.
struct Lion {
    double beta1 = 0.9;
    double beta2 = 0.99;
    double weight_decay = 0.0;
    bool cautious_decay = false;  ///< see DecayFactors

    static constexpr std::array moments{"momentum"};

    template <class Real>
    struct Formula {
        Real mix1, mix2, lr;

        GRADTILE_HOST_DEVICE Real operator()(Real g, Real& m) const {
            const Real direction = m + mix1 * (g - m);
            m = m + mix2 * (g - m);
            const Real sign = static_cast<Real>((direction > Real{0}) - (direction < Real{0}));
            return lr * sign;
        }
    };
    template <class Real>
    GRADTILE_HOST_DEVICE Formula<Real> formula(double lr, std::int32_t) const {
        return {.mix1 = static_cast<Real>(1.0 - beta1),
                .mix2 = static_cast<Real>(1.0 - beta2),
                .lr = static_cast<Real>(lr)};
    }
};

/// The settings for --optimizer lion.
struct LionSettings {
    using Rule = Lion;
    static constexpr std::string_view name = "lion";

    double beta1 = 0.9;
    double beta2 = 0.99;

    template <class Self, class Visit>
    static void visit_settings(Self& self, Visit& visit) {
        visit("lion-beta1", self.beta1, "lion: weight of the momentum in an update",
              setting_limits::proper_fraction);
        visit("lion-beta2", self.beta2, "lion: decay of the momentum", setting_limits::proper_fraction);
    }
    Lion rule(double weight_decay, bool cautious_decay) const {
        return {beta1, beta2, weight_decay, cautious_decay};
    }
};

}  // namespace gradtile
