#pragma once
/// Callbacks from forward and backward. The caller uses them to exchange values and gradients between
/// processes, so that layers do not depend on the exchange.
#include <functional>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

struct ForwardHooks {
    /// Called before the first read of any parameter up to and including `last`, in the store's order. The
    /// callback can wait until these parameters' values have arrived from other processes.
    std::function<void(const Parameter& last)> before_use = {};
};

struct BackwardHooks {
    /// Called once per parameter, directly after the last contribution to its gradient was enqueued.
    std::function<void(const Parameter&)> gradient_complete = {};
    /// Called directly before a transformer block's attention is enqueued, which is a good time to start an
    /// exchange between processes. Attention kernels have many short thread blocks, so a concurrent exchange
    /// only uses its share of the multiprocessors. In a matrix product, thread blocks run as long as the
    /// product itself, so a concurrent exchange would delay the whole product.
    std::function<void()> before_attention = {};
};

/// Calls hooks.gradient_complete for each parameter that is defined and not frozen, in order.
template <class... Parameters>
void notify_gradients_complete(const BackwardHooks& hooks, const Parameters&... parameters) {
    if (!hooks.gradient_complete) return;
    ((parameters.defined() && !parameters.is_frozen() ? hooks.gradient_complete(parameters) : void()), ...);
}

inline void notify_before_attention(const BackwardHooks& hooks) {
    if (hooks.before_attention) hooks.before_attention();
}

}  // namespace gradtile
