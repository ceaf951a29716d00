#include <gradtile/tools/plan/cost_model.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

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
    // A block's residuals and weights cross the bus while another block computes: in the forward pass in both
    // directions, in the backward pass in one. Gradients were measured not to overlap
    // (bench/results/2026-11-29-offload-h200.md).
    const double residuals = work.residual_bytes_of_block, weights = work.weight_bytes_of_block;
    const auto block = [&](const Work& part, double overlapping_bytes, double gradient_bytes) {
        return QueuedPiece{.seconds = std::max(piece(part).seconds, overlapping_bytes / assumed_bus_bytes) +
                                      gradient_bytes / assumed_bus_bytes};
    };
    const auto blocks = static_cast<std::size_t>(step.layers);
    Passes passes;
    passes.forward = {piece(work.embed_forward)};
    passes.forward.insert(passes.forward.end(), blocks,
                          block(work.block_forward, std::max(residuals, weights), 0.0));
    passes.forward.push_back(piece(work.head));
    // The head's piece is empty: its gradient is computed in the forward pass.
    passes.backward = {QueuedPiece{}};
    passes.backward.insert(passes.backward.end(), blocks,
                           block(work.block_backward, residuals + weights, work.gradient_bytes_of_block));
    passes.backward.push_back(piece(work.embed_backward));
    return passes;
}

/// Returns the buckets that DataParallel makes for `processes` shards.
std::vector<ParameterBucket> buckets_of(const TrainConfig& config, const ParameterStore& parameters,
                                        int processes) {
    const auto all = parameters.parameters();
    const auto first_in = [&](const FlatRange& range) {
        return *std::ranges::lower_bound(all, range.begin, {}, &Parameter::offset);
    };
    std::vector<ParameterBucket> buckets;
    for (const ShardBucket& bucket : shard_buckets(parameters, processes, data_parallel_options(config))) {
        const Parameter first = first_in(bucket.range);
        buckets.push_back({.elements = static_cast<double>(bucket.range.length),
                           .stage = first.first_stage(),
                           .is_read_again = first.last_stage() > first.first_stage(),
                           .equal_parts = bucket.equal_parts > 0});
    }
    return buckets;
}

/// The queues for a step, and the bytes that it transfers.
struct Timeline {
    std::vector<QueuedPiece> compute, transfers;
    WireBytes wire;
};

/// A step's passes and exchanges are appended in the order in which training enqueues them.
class TimelineBuilder {
  public:
    TimelineBuilder(const ParallelStep& step, const Passes& passes, const GpuLayout& layout,
                    const Links& links)
        : step_(step), passes_(passes), layout_(layout), links_(links), exchanges_(layout.gpus() > 1) {}

    /// Computation without exchanges.
    void add_seconds(double seconds) { timeline_.compute.push_back({.seconds = seconds}); }

    /// ZeRO-1 and 2 gather values in the first pass only. After a backward pass, ZeRO-3 still has the values
    /// of the first block and those that a tied head reads.
    void add_forward(bool is_first) {
        const std::size_t first = append(passes_.forward);
        if (is_first && exchanges_ && (step_.zero == 1 || step_.zero == 2))
            for (const ParameterBucket& bucket : step_.buckets)
                gather(bucket, first + bucket.stage, std::nullopt);
        for (const ParameterBucket& bucket : gathered_in_passes()) {
            const bool is_kept = bucket.is_read_again || bucket.stage == 1;
            if (is_first || !is_kept)
                gather(bucket, first + bucket.stage, start_of_stage_before(first, bucket.stage));
        }
    }

    void add_backward(bool reduces) {
        const std::size_t first = append(passes_.backward);
        const std::size_t head = passes_.backward.size() - 1;
        const auto piece_of = [&](std::size_t stage) { return first + head - stage; };
        const auto visit_buckets = [](std::span<const ParameterBucket> buckets, std::size_t stage,
                                      const auto& visit) {
            for (auto bucket = buckets.rbegin(); bucket != buckets.rend(); ++bucket)
                if (bucket->stage == stage) visit(*bucket);
        };
        const auto reduce_stage = [&](std::size_t stage) {
            if (!reduces) return;
            visit_buckets(step_.buckets, stage,
                          [&](const ParameterBucket& b) { reduce(b, piece_of(stage)); });
        };
        // While a stage runs, the next one's values are gathered, and then the gradients of the one before
        // are reduced. The values of the head and the last block are still there; the embeddings' are not
        // read.
        for (std::size_t stage = head; stage > 0; --stage) {
            if (stage + 1 < head)
                visit_buckets(gathered_in_passes(), stage, [&](const ParameterBucket& b) {
                    gather(b, piece_of(stage), start_of_stage_before(first, head - stage));
                });
            if (stage + 2 <= head) reduce_stage(stage + 2);
        }
        for (const std::size_t stage : {std::size_t{2}, std::size_t{1}, std::size_t{0}})
            if (stage <= head) reduce_stage(stage);
    }

    Timeline take() { return std::move(timeline_); }

  private:
    std::span<const ParameterBucket> gathered_in_passes() const {
        if (!exchanges_) return {};
        return step_.zero == 3 ? step_.buckets : step_.frozen_buckets;
    }
    /// Returns the index of the first piece.
    std::size_t append(const std::vector<QueuedPiece>& pieces) {
        const std::size_t first = timeline_.compute.size();
        timeline_.compute.insert(timeline_.compute.end(), pieces.begin(), pieces.end());
        return first;
    }
    /// The piece after which the pass's piece before number `piece` starts, in a pass that begins at `first`.
    static std::optional<std::size_t> start_of_stage_before(std::size_t first, std::size_t piece) {
        const std::size_t before = first + (piece > 0 ? piece - 1 : 0);
        return before > 0 ? std::optional(before - 1) : std::nullopt;
    }
    /// Broadcasting a bucket's parts transfers as many bytes as an all-gather over the bucket.
    void gather(const ParameterBucket& bucket, std::size_t before, std::optional<std::size_t> after) {
        const double bytes = bucket.elements * static_cast<double>(size_of(step_.dtype));
        timeline_.compute[before].after = timeline_.transfers.size();
        timeline_.transfers.push_back({.seconds = scatter_seconds(layout_, links_, bytes), .after = after});
        timeline_.wire += scatter_wire_bytes(layout_, bytes);
    }
    void reduce(const ParameterBucket& bucket, std::size_t after) {
        const double bytes = bucket.elements * static_cast<double>(size_of(accumulator_of(step_.dtype)));
        const bool scattered = step_.zero > 0 && bucket.equal_parts;
        timeline_.transfers.push_back({.seconds = scattered ? scatter_seconds(layout_, links_, bytes)
                                                            : all_reduce_seconds(layout_, links_, bytes),
                                       .after = after});
        timeline_.wire +=
            scattered ? scatter_wire_bytes(layout_, bytes) : all_reduce_wire_bytes(layout_, bytes);
    }

    const ParallelStep& step_;
    const Passes& passes_;
    const GpuLayout& layout_;
    const Links& links_;
    bool exchanges_;
    Timeline timeline_;
};

/// ZeRO-1 and 2 gather values in a step's first forward pass, ZeRO-3 in every pass. ZeRO-2 and 3 reduce
/// gradients in every micro-step, the other levels in the last.
Timeline timeline_of(const ParallelStep& step, const Passes& passes, const GpuLayout& layout,
                     const Links& links) {
    TimelineBuilder builder(step, passes, layout, links);
    const bool exchanges = layout.gpus() > 1, reduces_always = exchanges && step.zero >= 2;
    builder.add_forward(/*is_first=*/true);
    for (std::int64_t i = 1; i < step.accumulation_steps && reduces_always; ++i) {
        builder.add_backward(/*reduces=*/true);
        builder.add_forward(/*is_first=*/false);
    }
    if (!reduces_always && step.accumulation_steps > 1)
        builder.add_seconds(static_cast<double>(step.accumulation_steps - 1) * passes.seconds());
    builder.add_backward(exchanges);
    return builder.take();
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

/// Returns the bytes per element that the gradient norm and the update read over the bus, and those of the
/// values, which the update writes.
double host_bytes(const TrainConfig& config, const ParameterStore& parameters) {
    double bytes = 0.0;
    if (has_part(config.offload, Offload::gradients))
        bytes += 2.0 * static_cast<double>(size_of(storage_dtype(config.gradient_dtype)));
    if (has_part(config.offload, Offload::weights) && config.adapters.rank == 0)
        bytes += static_cast<double>(size_of(storage_dtype(config.dtype)));
    if (!has_part(config.offload, Offload::optimizer)) return bytes;
    const std::int64_t elements = parameters.flat_elements();
    const OptimizerPart all = largest_optimizer_part(parameters, config, 1);
    const std::size_t masters = is_16_bit(storage_dtype(config.dtype)) ? all.master_bytes : 0;
    return bytes + static_cast<double>(all.state_bytes) / static_cast<double>(elements) +
           static_cast<double>(masters);
}

/// Returns how many bytes per element the update reads and writes in addition to those of AdamW with float32
/// moments and masters.
double update_bytes_beyond_adamw(const TrainConfig& config, const ParameterStore& parameters) {
    const std::int64_t elements = parameters.flat_elements();
    const OptimizerPart all = largest_optimizer_part(parameters, config, 1);
    const double state = static_cast<double>(all.state_bytes) / static_cast<double>(elements);
    double bytes = 2 * (state - 2 * sizeof(float));
    // Remainders instead of masters, and the values that they belong to.
    if (config.masters == MasterFormat::split) bytes += 2 * (2.0 - sizeof(float)) + 2;
    // The norm and the update read the gradients.
    bytes += 2 * (static_cast<double>(size_of(storage_dtype(config.gradient_dtype))) - sizeof(float));
    return bytes;
}

/// Memory traffic to dequantize a block's frozen matrices once: reading the codes, writing the weights.
double dequantized_bytes(const TrainConfig& config) {
    if (config.adapters.frozen_format == WeightFormat::same) return 0.0;
    const BlockMatrices matrices = block_matrices(config.model);
    double bytes =
        static_cast<double>(matrices.elements()) * static_cast<double>(size_of(storage_dtype(config.dtype)));
    for (const MatrixShape& matrix : {matrices.qkv, matrices.proj, matrices.up, matrices.down})
        bytes +=
            static_cast<double>(size_of(DType::i32)) *
            static_cast<double>(quantized_layout(config.adapters.frozen_format, matrix.elements()).words);
    return bytes;
}

/// Leaves out what a step does for frozen weights, and adds the adapters' products and the dequantization of
/// frozen matrices, which every pass repeats.
void freeze_weights(StepWork& work, const TrainConfig& config, std::int64_t micro_batch) {
    const auto rows = static_cast<double>(micro_batch * config.model.context);
    const double matrices = 2 * rows * static_cast<double>(block_matrices(config.model).elements());
    const double adapters = 2 * rows * static_cast<double>(adapter_elements(config.model, config.adapters));
    const double passes_in_backward = config.training.recompute == Recompute::block ? 2.0 : 1.0;
    work.block_forward.product_flops += adapters;
    work.block_backward.product_flops += 2 * adapters - matrices;
    work.block_forward.bytes += dequantized_bytes(config);
    work.block_backward.bytes += passes_in_backward * dequantized_bytes(config);
    work.head.product_flops *= 2.0 / 3;
    work.embed_backward = {};
}

/// One bucket for each stage, which reads its parameters together.
std::vector<ParameterBucket> frozen_buckets(const ParameterStore& frozen, DType dtype) {
    std::vector<ParameterBucket> buckets;
    for (const Parameter& parameter : frozen.parameters()) {
        if (buckets.empty() || buckets.back().stage != parameter.first_stage())
            buckets.push_back({.stage = parameter.first_stage()});
        ParameterBucket& bucket = buckets.back();
        bucket.elements +=
            parameter.is_quantized()
                ? static_cast<double>(size_of(DType::i32)) / static_cast<double>(size_of(dtype)) *
                      static_cast<double>(
                          quantized_layout(parameter.format(), parameter.shape().elements()).words)
                : static_cast<double>(parameter.padded_elements());
        bucket.is_read_again |= parameter.last_stage() > parameter.first_stage();
    }
    return buckets;
}

}  // namespace

ParallelStep parallel_step(const TrainConfig& config, std::int64_t gpus) {
    check(config.context_parallel == 1, "context-parallel: ", config.context_parallel,
          "; the cost model has no ring attention, expected 1 (gradtile train --memory plans its memory)");
    const DType dtype = storage_dtype(config.dtype);
    const int shards = config.zero > 0 ? static_cast<int>(gpus) : 1;
    ParameterStore parameters, frozen;
    const Transformer transformer(config.model, parameters, frozen, config.training, config.adapters);
    StepWork work = step_work(config.model, dtype, config.micro_batch_size(gpus), config.training.recompute);
    if (config.adapters.rank > 0) freeze_weights(work, config, config.micro_batch_size(gpus));
    work.host_bytes_of_element = host_bytes(config, parameters);
    work.update_bytes_of_element +=
        update_bytes_beyond_adamw(config, parameters) - 2 * work.host_bytes_of_element;
    return {.work = work,
            .dtype = dtype,
            .layers = config.model.layers,
            .accumulation_steps = config.accumulation_steps(gpus),
            .zero = data_parallel_options(config).zero,
            .buckets = buckets_of(config, parameters, shards),
            .frozen_buckets = data_parallel_options(config).shards_frozen ? frozen_buckets(frozen, dtype)
                                                                          : std::vector<ParameterBucket>(),
            .update_flops = largest_optimizer_part(parameters, config, shards).product_flops};
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
