#include <gradtile/tools/plan/cost_model.h>

#include <algorithm>

#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/plan/overlap.h>
#include <gradtile/train/configured_optimizer.h>
#include <gradtile/train/parallel/data_parallel.h>

namespace gradtile {
namespace {

/// One step's passes as queues: `layers` + 2 pieces forward, as many backward.
struct Passes {
    std::vector<QueuedPiece> forward, backward;
    double seconds() const {
        double sum = 0;
        for (const auto* pass : {&forward, &backward})
            for (const QueuedPiece& piece : *pass) sum += piece.seconds;
        return sum;
    }
};

Passes passes_of(const ParallelStep& step, const CostConstants& constants) {
    const StepWork& work = step.work;
    const auto piece = [&](const Work& part) {
        return QueuedPiece{.seconds = work_seconds(part, step.dtype, constants)};
    };
    // A block's residuals cross the bus while the next block computes.
    const double bus_seconds = work.residual_bytes_of_block / assumed_bus_bytes;
    const auto block = [&](const Work& part) {
        return QueuedPiece{.seconds = std::max(piece(part).seconds, bus_seconds)};
    };
    const auto blocks = static_cast<std::size_t>(step.layers);
    Passes passes;
    passes.forward = {piece(work.embed_forward)};
    passes.forward.insert(passes.forward.end(), blocks, block(work.block_forward));
    passes.forward.push_back(piece(work.head));
    // The head's piece is empty: its gradient is computed in the forward pass.
    passes.backward = {QueuedPiece{}};
    passes.backward.insert(passes.backward.end(), blocks, block(work.block_backward));
    passes.backward.push_back(piece(work.embed_backward));
    return passes;
}

std::size_t stage_of(const Parameter& parameter, std::int64_t layers) {
    const std::string& name = parameter.name();
    if (name.starts_with("h.")) return 1 + std::stoul(name.substr(2));
    return name.starts_with("wte.") || name.starts_with("wpe.") ? 0 : static_cast<std::size_t>(layers) + 1;
}

/// Returns the buckets that DataParallel makes for `processes` shards.
std::vector<ParameterBucket> buckets_of(const TrainConfig& config, const ParameterStore& parameters,
                                        std::int64_t elements, int processes) {
    const auto all = parameters.parameters();
    const auto first_in = [&](const FlatRange& range) {
        const auto behind = std::ranges::upper_bound(all, range.begin, {}, &Parameter::offset);
        return *std::prev(behind);
    };
    std::vector<ParameterBucket> buckets;
    for (const ShardBucket& bucket :
         shard_buckets(parameters, elements, processes, data_parallel_options(config)))
        buckets.push_back({.elements = static_cast<double>(bucket.range.length),
                           .stage = stage_of(first_in(bucket.range), config.model.layers),
                           .equal_parts = bucket.equal_parts});
    return buckets;
}

/// The queues for a step, and the bytes that it transfers.
struct Timeline {
    std::vector<QueuedPiece> compute, transfers;
    WireBytes wire;
};

/// ZeRO: values are gathered before the forward pieces that need them. Broadcasting a bucket's parts
/// transfers as many bytes as an all-gather over the bucket.
void gather_values(Timeline& timeline, const ParallelStep& step, const GpuLayout& layout,
                   const Links& links) {
    for (const ParameterBucket& bucket : step.buckets) {
        const double bytes = bucket.elements * static_cast<double>(size_of(step.dtype));
        timeline.compute[bucket.stage].after = timeline.transfers.size();
        timeline.transfers.push_back({.seconds = scatter_seconds(layout, links, bytes)});
        timeline.wire += scatter_wire_bytes(layout, bytes);
    }
}

/// Adds each bucket's reduction, which starts after the backward piece that completes the bucket's gradients.
/// The backward pieces are the last pieces in the compute queue.
void reduce_gradients(Timeline& timeline, const ParallelStep& step, const GpuLayout& layout,
                      const Links& links) {
    for (auto bucket = step.buckets.rbegin(); bucket != step.buckets.rend(); ++bucket) {
        const double bytes = bucket->elements * static_cast<double>(size_of(accumulator_of(step.dtype)));
        const std::size_t last_piece = timeline.compute.size() - 1 - bucket->stage;
        const bool scattered = step.zero > 0 && bucket->equal_parts;
        timeline.transfers.push_back({.seconds = scattered ? scatter_seconds(layout, links, bytes)
                                                           : all_reduce_seconds(layout, links, bytes),
                                      .after = last_piece});
        timeline.wire += scattered ? scatter_wire_bytes(layout, bytes) : all_reduce_wire_bytes(layout, bytes);
    }
}

Timeline timeline_of(const ParallelStep& step, const Passes& passes, const GpuLayout& layout,
                     const Links& links) {
    Timeline timeline;
    timeline.compute = passes.forward;
    const bool is_alone = layout.gpus() == 1;
    if (step.zero > 0 && !is_alone) gather_values(timeline, step, layout, links);
    const auto add_backward = [&] {
        timeline.compute.insert(timeline.compute.end(), passes.backward.begin(), passes.backward.end());
    };
    // The passes between the first forward pass and the last backward pass.
    if (step.zero == 2) {
        double forward = 0;
        for (const QueuedPiece& piece : passes.forward) forward += piece.seconds;
        for (std::int64_t i = 1; i < step.accumulation_steps; ++i) {
            add_backward();
            if (!is_alone) reduce_gradients(timeline, step, layout, links);
            timeline.compute.push_back({.seconds = forward});
        }
    } else if (step.accumulation_steps > 1) {
        const auto between = static_cast<double>(step.accumulation_steps - 1);
        timeline.compute.push_back({.seconds = between * passes.seconds()});
    }
    add_backward();
    if (!is_alone) reduce_gradients(timeline, step, layout, links);
    return timeline;
}

}  // namespace

CostConstants h200_constants() {
    // Fitted on 2026-11-22 to bench/results/2026-11-21-h200-steps.jsonl; a test compares the constants with
    // that file.
    return {.product_flops = 649.3e12,
            .attention_flops = 217.9e12,
            .product_flops_f32 = 45.29e12,
            .attention_flops_f32 = 64.10e12,
            .memory_bytes = 3507e9,
            .update_bytes = 3936e9,
            .block_seconds = 60.36e-6,
            .nvlink_bytes = 331.9e9,
            .nvlink_latency = 8.161e-6,
            .contention = 1.005};
}

std::vector<std::string> h200_provenance() {
    return {
        "one GPU: fitted to an H200's steps of 124M to 774M parameters at context 1024; smaller models are "
        "slower than predicted",
        "GPUs of a node: fitted to NCCL's collectives on 4 H200s and to steps on 1, 2 and 4 of them, whose "
        "scaling it predicts 2 to 3 points too high"};
}

double ParallelStep::elements() const {
    double sum = 0;
    for (const ParameterBucket& bucket : buckets) sum += bucket.elements;
    return sum;
}

namespace {

/// Returns the bytes per element that an update reads over the bus, and writes at the same time.
double host_bytes(const TrainConfig& config, const ParameterStore& parameters) {
    if (!offloads_optimizer(config.offload)) return 0.0;
    const std::int64_t elements = parameters.flat_elements();
    const OptimizerPart all = largest_optimizer_part(parameters, elements, config, 1);
    const std::size_t masters = is_16_bit(storage_dtype(config.dtype)) ? all.master_bytes : 0;
    return static_cast<double>(all.state_bytes) / static_cast<double>(elements) +
           static_cast<double>(masters);
}

/// Returns how many bytes per element the update reads and writes in addition to those of AdamW with float32
/// moments and masters.
double update_bytes_beyond_adamw(const TrainConfig& config, const ParameterStore& parameters) {
    const std::int64_t elements = parameters.flat_elements();
    const OptimizerPart all = largest_optimizer_part(parameters, elements, config, 1);
    const double state = static_cast<double>(all.state_bytes) / static_cast<double>(elements);
    double bytes = 2 * (state - 2 * sizeof(float));
    if (config.average_decay > 0.0) bytes += sizeof(float);  // the weights that are averaged
    // Remainders instead of masters, and the values that they belong to.
    if (config.masters == MasterFormat::split) bytes += 2 * (2.0 - sizeof(float)) + 2;
    return bytes;
}

}  // namespace

ParallelStep parallel_step(const TrainConfig& config, std::int64_t gpus) {
    check(config.context_parallel == 1, "context-parallel: ", config.context_parallel,
          "; the cost model has no ring attention, expected 1 (gradtile train --memory plans its memory)");
    const DType dtype = storage_dtype(config.dtype);
    const int shards = config.zero > 0 ? static_cast<int>(gpus) : 1;
    ParameterStore parameters;
    const Transformer transformer(config.model, parameters);
    const std::int64_t elements = rounded_up(parameters.flat_elements(), flat_multiple(shards));
    StepWork work = step_work(config.model, dtype, config.micro_batch_size(gpus), config.training.recompute);
    work.host_bytes_of_element = host_bytes(config, parameters);
    work.update_bytes_of_element +=
        update_bytes_beyond_adamw(config, parameters) - 2 * work.host_bytes_of_element;
    return {.work = work,
            .dtype = dtype,
            .layers = config.model.layers,
            .accumulation_steps = config.accumulation_steps(gpus),
            .zero = static_cast<int>(config.zero),
            .buckets = buckets_of(config, parameters, elements, shards),
            .update_flops = largest_optimizer_part(parameters, elements, config, shards).product_flops};
}

double work_seconds(const Work& work, DType dtype, const CostConstants& c) {
    const bool narrow = is_16_bit(dtype);
    return work.product_flops / (narrow ? c.product_flops : c.product_flops_f32) +
           work.attention_flops / (narrow ? c.attention_flops : c.attention_flops_f32) +
           work.bytes / c.memory_bytes + work.blocks * c.block_seconds;
}

StepCost step_cost(const ParallelStep& step, const CostConstants& constants, const GpuLayout& layout,
                   const Links& links) {
    const Passes passes = passes_of(step, constants);
    const Timeline timeline = timeline_of(step, passes, layout, links);
    const double both = overlapped_seconds(timeline.compute, timeline.transfers, constants.contention);

    StepCost cost{.compute = static_cast<double>(step.accumulation_steps) * passes.seconds(),
                  .wire = timeline.wire};
    // The loss is summed over processes, and with ZeRO the gradient norm, too: a few bytes each.
    const double small_sums = (step.zero > 0 ? 2 : 1) * all_reduce_seconds(layout, links, 0);
    if (layout.gpus() > 1) cost.exposed = both - cost.compute + small_sums;
    const double updated = step.elements() / static_cast<double>(step.zero > 0 ? layout.gpus() : 1);
    cost.update = updated * std::max(step.work.update_bytes_of_element / constants.update_bytes,
                                     step.work.host_bytes_of_element / assumed_bus_bytes) +
                  step.update_flops / constants.product_flops;  // in bfloat16, whatever the run's dtype
    return cost;
}

}  // namespace gradtile
