#include <gradtile/tools/models/model_costs.h>

#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/generation/next_token.h>
#include <gradtile/train/memory_request.h>

namespace gradtile {
namespace {

std::size_t generation_bytes(const Context& dry, Device device, const ModelConfig& config, DType dtype,
                             std::int64_t texts) {
    const auto weights = Arena::for_planning(dry.device()), pass = Arena::for_planning(dry.device());
    ParameterStore parameters;
    const Transformer transformer(config, parameters);
    parameters.allocate(dry.plan(weights), dtype, {.masters = false, .gradients = false});
    const KeyValueCache cache(dry.plan(weights), config, dtype, texts);
    plan_longest_pass(dry.plan(pass), transformer, cache, texts);
    const double activations = arena_slack(device) * static_cast<double>(pass->peak_bytes());
    return weights->peak_bytes() + static_cast<std::size_t>(activations);
}

}  // namespace

ModelCost generation_cost(const Context& dry, Device device, const ModelConfig& config, DType dtype,
                          std::int64_t texts, const CostConstants& constants) {
    const double seconds = work_seconds(generation_work(config, dtype, texts), dtype, constants);
    return {.memory = generation_bytes(dry, device, config, dtype, texts),
            .tokens_per_second = static_cast<double>(texts) / seconds};
}

ModelCost training_cost(const Context& dry, Device device, const TrainConfig& config,
                        const CostConstants& constants) {
    const ParallelStep step = parallel_step(config, 1);
    const Links links{.nvlink = constants.nvlink(), .network = constants.nvlink()};
    const StepCost cost = step_cost(step, constants, GpuLayout(1, 1), links);
    return {.memory = plan_memory(dry, memory_request(config, device)).total(),
            .tokens_per_second = static_cast<double>(config.batch * config.model.context) / cost.seconds()};
}

}  // namespace gradtile
