#pragma once
/// How backward tells others that a parameter's gradient is complete, so that layers need not know who
/// averages it over processes or when.
#include <functional>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// Called once per parameter and backward pass, right after the last contribution to its gradient was
/// enqueued.
using GradientReady = std::function<void(const Parameter&)>;

/// Announces each defined parameter, in order; ready may be empty.
template <class... Parameters>
void announce(const GradientReady& ready, const Parameters&... parameters) {
    if (!ready) return;
    ((parameters.defined() ? ready(parameters) : void()), ...);
}

}  // namespace gradtile
