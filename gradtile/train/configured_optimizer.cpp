#include <gradtile/train/configured_optimizer.h>

#include <gradtile/train/adamw.h>
#include <gradtile/train/muon.h>

namespace gradtile {

AdamWOptions adamw_options(const TrainConfig& config) {
    return {.beta1 = config.beta1,
            .beta2 = config.beta2,
            .epsilon = config.epsilon,
            .weight_decay = config.weight_decay};
}

std::unique_ptr<Optimizer> make_optimizer(const Context& ctx, const ParameterStore& parameters,
                                          const TrainConfig& config) {
    const AdamWOptions adamw = adamw_options(config);
    if (config.optimizer == OptimizerKind::adamw) return std::make_unique<AdamW>(ctx, parameters, adamw);
    const auto in_block = [](const Parameter& parameter) { return parameter.name().starts_with("h."); };
    return std::make_unique<Muon>(ctx, parameters, in_block,
                                  MuonOptions{.lr_ratio = config.muon_lr / config.lr,
                                              .momentum = config.muon_momentum,
                                              .weight_decay = config.weight_decay,
                                              .adamw = adamw});
}

}  // namespace gradtile
