#pragma once
/// How forward and backward tell others where they are, so that layers need not know who exchanges values
/// and gradients between processes, or when.
#include <functional>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

struct ForwardHooks {
    /// Called before the parameters up to and including `last`, in the store's order, are first read: where
    /// values that are still on their way can be waited for.
    std::function<void(const Parameter& last)> before_use = {};
};

struct BackwardHooks {
    /// Called once per parameter, right after the last contribution to its gradient was enqueued.
    std::function<void(const Parameter&)> gradient_complete = {};
    /// Called right before a block's attention is enqueued. Its kernels have many short thread blocks, so an
    /// exchange that starts now costs them its share of the multiprocessors for as long as it lasts. Beside a
    /// matrix product, whose thread blocks stay for the whole product, it would hold up all of it.
    std::function<void()> before_attention = {};
};

/// Announces each defined parameter, in order.
template <class... Parameters>
void announce(const BackwardHooks& hooks, const Parameters&... parameters) {
    if (!hooks.gradient_complete) return;
    ((parameters.defined() ? hooks.gradient_complete(parameters) : void()), ...);
}

inline void announce_attention(const BackwardHooks& hooks) {
    if (hooks.before_attention) hooks.before_attention();
}

}  // namespace gradtile
