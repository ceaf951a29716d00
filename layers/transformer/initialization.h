#pragma once
/// GPT-2's initial weights (Radford et al. 2019, section 2.3).
#include <cmath>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

inline constexpr double initial_std = 0.02;

inline Init weight_init() {
    return Init::normal(initial_std);
}
/// Initial values for matrices whose output is added to the residual stream. The stream is a sum of 2 *
/// layers such outputs, so the standard deviation is divided by sqrt(2 * layers). The stream's variance then
/// does not grow with depth.
inline Init residual_init(const ModelConfig& config, const TrainingOptions& training) {
    if (training.zero_init) return Init::zeros();
    return Init::normal(initial_std / std::sqrt(2.0 * static_cast<double>(config.layers)));
}

}  // namespace gradtile
