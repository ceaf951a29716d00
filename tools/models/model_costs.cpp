#include <gradtile/tools/models/model_costs.h>

#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/generation/next_token.h>
#include <gradtile/train/memory_request.h>

namespace gradtile {
namespace {

double as_double(std::int64_t x) {
    return static_cast<double>(x);
}

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

/// Memory traffic to dequantize a block's frozen matrices once: reading the codes, writing the weights.
double dequantized_bytes(const TrainConfig& config) {
    if (config.adapters.frozen_format == WeightFormat::same) return 0.0;
    const BlockMatrices matrices = block_matrices(config.model);
    double bytes = as_double(matrices.elements()) * static_cast<double>(size_of(storage_dtype(config.dtype)));
    for (const MatrixShape& matrix : {matrices.qkv, matrices.proj, matrices.up, matrices.down})
        bytes += static_cast<double>(size_of(DType::i32)) *
                 as_double(quantized_layout(config.adapters.frozen_format, matrix.elements()).words);
    return bytes;
}

/// Leaves out what a step does for frozen weights, and adds the adapters' products and the dequantization of
/// frozen matrices, which every pass repeats.
void freeze_weights(ParallelStep& step, const TrainConfig& config) {
    const double rows = as_double(config.micro_batch_size() * config.model.context);
    const double elements = as_double(adapter_elements(config.model, config.adapters));  // per block
    StepWork& work = step.work;
    const double matrices = 2 * rows * as_double(block_matrices(config.model).elements());
    const double adapters = 2 * rows * elements;
    work.block_forward.product_flops += adapters;
    work.block_backward.product_flops += 2 * adapters - matrices;
    const double passes_in_backward = config.training.recompute == Recompute::block ? 2.0 : 1.0;
    work.block_forward.bytes += dequantized_bytes(config);
    work.block_backward.bytes += passes_in_backward * dequantized_bytes(config);
    work.head.product_flops *= 2.0 / 3;
    step.buckets = {{.elements = as_double(config.model.layers) * elements}};
    step.update_flops = 0;
}

}  // namespace

ModelCost generation_cost(const Context& dry, Device device, const ModelConfig& config, DType dtype,
                          std::int64_t texts, const CostConstants& constants) {
    const double seconds = work_seconds(generation_work(config, dtype, texts), dtype, constants);
    return {.memory = generation_bytes(dry, device, config, dtype, texts),
            .tokens_per_second = as_double(texts) / seconds};
}

ModelCost training_cost(const Context& dry, Device device, const TrainConfig& config,
                        const CostConstants& constants) {
    ParallelStep step = parallel_step(config, 1);
    if (config.adapters.rank > 0) freeze_weights(step, config);
    const Links links{.nvlink = constants.nvlink(), .network = constants.nvlink()};
    const StepCost cost = step_cost(step, constants, GpuLayout(1, 1), links);
    return {.memory = plan_memory(dry, memory_request(config, device)).total(),
            .tokens_per_second = as_double(config.batch * config.model.context) / cost.seconds()};
}

}  // namespace gradtile
