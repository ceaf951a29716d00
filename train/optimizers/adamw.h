#pragma once
/// AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2; Kingma and Ba 2015), in
/// the form PyTorch computes it:
///
///     m = beta1 m + (1 - beta1) g             v = beta2 v + (1 - beta2) g^2
///     w = (1 - lr decay) w - lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
///
/// t counts applied updates from 1.
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include <gradtile/core/host_device.h>
#include <gradtile/core/range.h>

namespace gradtile {

/// A rule for an ElementwiseOptimizer.
struct AdamW {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;  ///< added to the root, not to its argument
    double weight_decay = 0.0;
    bool cautious_decay = false;  ///< see DecayFactors

    static constexpr std::array moments{"m", "v"};

    template <class Real>
    struct Formula {
        Real mix1, beta2, mix2, root_correction, epsilon, step_size;

        GRADTILE_HOST_DEVICE Real operator()(Real g, Real& m, Real& v) const {
            m = m + mix1 * (g - m);
            v = v * beta2 + mix2 * g * g;
            return step_size * m / (std::sqrt(v) * root_correction + epsilon);
        }
    };
    template <class Real>
    GRADTILE_HOST_DEVICE Formula<Real> formula(double lr, std::int32_t t) const {
        const double correction1 = 1.0 - std::pow(beta1, static_cast<double>(t));
        const double correction2 = 1.0 - std::pow(beta2, static_cast<double>(t));
        return {.mix1 = static_cast<Real>(1.0 - beta1),
                .beta2 = static_cast<Real>(beta2),
                .mix2 = static_cast<Real>(1.0 - beta2),
                .root_correction = static_cast<Real>(1.0 / std::sqrt(correction2)),
                .epsilon = static_cast<Real>(epsilon),
                .step_size = static_cast<Real>(lr / correction1)};
    }
};

/// The settings for --optimizer adamw.
struct AdamWSettings {
    using Rule = AdamW;
    static constexpr std::string_view name = "adamw";

    double beta1 = 0.9;
    double beta2 = 0.99;
    double epsilon = 1e-8;

    template <class Self, class Visit>
    static void visit_settings(Self& self, Visit& visit) {
        visit("beta1", self.beta1, "AdamW: decay of the first moment", setting_limits::proper_fraction);
        visit("beta2", self.beta2, "AdamW: decay of the second moment", setting_limits::proper_fraction);
        visit("epsilon", self.epsilon, "AdamW: added to the root of the second moment",
              setting_limits::positive);
    }
    AdamW rule(double weight_decay, bool cautious_decay) const {
        return {beta1, beta2, epsilon, weight_decay, cautious_decay};
    }
};

}  // namespace gradtile
