#pragma once
/// Callbacks from forward and backward. Another part of the program uses these callbacks to exchange values
/// and gradients between processes, so layers do not depend on that part.
#include <functional>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

struct ForwardHooks {
    /// Called before the first read of the parameters up to and including `last`, in the store's order. The
    /// callback can wait until their values have arrived from other processes.
    std::function<void(const Parameter& last)> before_use = {};
};

struct BackwardHooks {
    /// Called once per parameter, directly after the last contribution to its gradient was enqueued.
    std::function<void(const Parameter&)> gradient_complete = {};
    /// Called directly before a block's attention is enqueued, which is a good time to start an exchange.
    /// Attention kernels have many short thread blocks, so an exchange only takes its share of the
    /// multiprocessors while it runs. The thread blocks of a matrix product run as long as the product, so an
    /// exchange would delay the whole product.
    std::function<void()> before_attention = {};
};

/// Announces each defined parameter that is not frozen, in order.
template <class... Parameters>
void announce(const BackwardHooks& hooks, const Parameters&... parameters) {
    if (!hooks.gradient_complete) return;
    ((parameters.defined() && !parameters.is_frozen() ? hooks.gradient_complete(parameters) : void()), ...);
}

inline void announce_attention(const BackwardHooks& hooks) {
    if (hooks.before_attention) hooks.before_attention();
}

}  // namespace gradtile
