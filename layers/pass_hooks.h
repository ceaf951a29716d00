#pragma once
/// Callbacks from forward and backward. The caller uses them to exchange values and gradients between
/// processes, so that layers do not depend on the exchange.
#include <functional>
#include <optional>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// Called before the first read of a value in this stage of a pass (ParameterStore::begin_stage()). The pass
/// then reads only the stage's values until it calls the hook for `next`; no stage follows if there is none.
/// The callback can wait until the values have arrived from other processes, and fetch those of `next`.
using StageHook = std::function<void(std::size_t stage, std::optional<std::size_t> next)>;

struct ForwardHooks {
    StageHook before_stage = {};
};

struct BackwardHooks {
    StageHook before_stage = {};
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

/// `Hooks` are ForwardHooks or BackwardHooks.
template <class Hooks>
void notify_before_stage(const Hooks& hooks, std::size_t stage, std::optional<std::size_t> next) {
    if (hooks.before_stage) hooks.before_stage(stage, next);
}

}  // namespace gradtile
