#include <gradtile/train/cost_model.h>

#include <gradtile/train/overlap.h>

namespace gradtile {
namespace {

/// The passes of one step as a queue: `blocks` + 2 pieces forward, as many backward.
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
    const StepWork work = step_work(step.model, step.dtype, step.micro_batch);
    const auto piece = [&](const Work& part) {
        return QueuedPiece{.seconds = work_seconds(part, step.dtype, constants)};
    };
    const auto blocks = static_cast<std::size_t>(step.model.layers);
    Passes passes;
    passes.forward = {piece(work.embed_forward)};
    passes.forward.insert(passes.forward.end(), blocks, piece(work.block_forward));
    passes.forward.push_back(piece(work.head));
    passes.backward = {QueuedPiece{}};  // the head's gradient is there already
    passes.backward.insert(passes.backward.end(), blocks, piece(work.block_backward));
    passes.backward.push_back(piece(work.embed_backward));
    return passes;
}

/// Elements by piece of the forward queue; the backward queue has them in the other order.
std::vector<double> elements_by_piece(const ModelConfig& model) {
    const ParameterElements elements = parameter_elements(model);
    std::vector<double> by_piece{elements.embedding};
    by_piece.insert(by_piece.end(), static_cast<std::size_t>(model.layers), elements.block);
    by_piece.push_back(elements.head);
    return by_piece;
}

/// Some of the parameters, which a collective takes at once: those of pieces first .. last of a queue.
struct Bucket {
    double bytes = 0;
    std::size_t first = 0, last = 0;
};

std::vector<Bucket> buckets_of(const std::vector<double>& elements, double element_bytes) {
    std::vector<Bucket> buckets;
    Bucket open;
    for (std::size_t i = 0; i < elements.size(); ++i) {
        open.bytes += elements[i] * element_bytes;
        open.last = i;
        if (open.bytes < bucket_bytes && i + 1 < elements.size()) continue;
        buckets.push_back(open);
        open = {.first = i + 1};
    }
    return buckets;
}

/// A step's queues, and what they put on the wire.
struct Timeline {
    std::vector<QueuedPiece> compute, transfers;
    WireBytes wire;
};

/// ZeRO-1: values come before the forward pieces that need them.
void gather_values(Timeline& timeline, const ParallelStep& step, const std::vector<double>& elements,
                   const GpuLayout& layout, const Links& links) {
    for (const Bucket& bucket : buckets_of(elements, static_cast<double>(size_of(step.dtype)))) {
        timeline.compute[bucket.first].after = timeline.transfers.size();
        timeline.transfers.push_back({.seconds = scatter_seconds(layout, links, bucket.bytes)});
        timeline.wire += scatter_wire_bytes(layout, bucket.bytes);
    }
}

/// Gradients leave when the backward piece that completes them is done; that pass ends the compute queue.
void reduce_gradients(Timeline& timeline, const ParallelStep& step, const std::vector<double>& elements,
                      const GpuLayout& layout, const Links& links) {
    const std::vector<double> backwards(elements.rbegin(), elements.rend());
    const std::size_t first_piece = timeline.compute.size() - backwards.size();
    const auto gradient_bytes = static_cast<double>(size_of(accumulator_of(step.dtype)));
    for (const Bucket& bucket : buckets_of(backwards, gradient_bytes)) {
        timeline.transfers.push_back({.seconds = step.zero ? scatter_seconds(layout, links, bucket.bytes)
                                                           : all_reduce_seconds(layout, links, bucket.bytes),
                                      .after = first_piece + bucket.last});
        timeline.wire += step.zero ? scatter_wire_bytes(layout, bucket.bytes)
                                   : all_reduce_wire_bytes(layout, bucket.bytes);
    }
}

Timeline timeline_of(const ParallelStep& step, const Passes& passes, const GpuLayout& layout,
                     const Links& links) {
    Timeline timeline;
    timeline.compute = passes.forward;
    if (step.accumulation_steps > 1) {  // what lies between the first forward and the last backward pass
        const auto between = static_cast<double>(step.accumulation_steps - 1);
        timeline.compute.push_back({.seconds = between * passes.seconds()});
    }
    timeline.compute.insert(timeline.compute.end(), passes.backward.begin(), passes.backward.end());
    if (layout.gpus() == 1) return timeline;
    const std::vector<double> elements = elements_by_piece(step.model);
    if (step.zero) gather_values(timeline, step, elements, layout, links);
    reduce_gradients(timeline, step, elements, layout, links);
    return timeline;
}

}  // namespace

CostConstants h200_constants() {
    // Fitted 2026-11-21 to bench/results/2026-11-21-h200-steps.jsonl; a test holds them to that file.
    return {.product_flops = 664.7e12,
            .attention_flops = 219.0e12,
            .product_flops_f32 = 45.56e12,
            .attention_flops_f32 = 64.10e12,
            .memory_bytes = 3221e9,
            .update_bytes = 3929e9,
            .block_seconds = 79.67e-6,
            .nvlink_bytes = 349.4e9,
            .nvlink_latency = 7.474e-6,
            .contention = 0.15};  // assumed: no step on several GPUs is among the measurements yet
}

std::vector<std::string> h200_provenance() {
    return {
        "one GPU: fitted to an H200's steps of 124M to 774M parameters at context 1024; smaller models are "
        "slower than said here",
        "GPUs of a node: NVLink fitted to NCCL all-reduces on 4 H200s; that collectives slow computation "
        "beside them by 15% is assumed; no step on several GPUs was measured yet"};
}

ParallelStep parallel_step(const TrainConfig& config, std::int64_t gpus) {
    return {.model = config.model,
            .dtype = storage_dtype(config.dtype),
            .micro_batch = config.micro_batch_size(gpus),
            .accumulation_steps = config.accumulation_steps(gpus),
            .zero = config.zero == 1};
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
    // The loss is summed over processes, with ZeRO-1 the gradient norm as well: a few bytes each.
    const double small_sums = (step.zero ? 2 : 1) * all_reduce_seconds(layout, links, 0);
    if (layout.gpus() > 1) cost.exposed = both - cost.compute + small_sums;
    const double elements = parameter_elements(step.model).total(step.model.layers);
    const double updated = elements / static_cast<double>(step.zero ? layout.gpus() : 1);
    const StepWork work = step_work(step.model, step.dtype, step.micro_batch);
    cost.update = updated * work.update_bytes_of_element / constants.update_bytes;
    return cost;
}

}  // namespace gradtile
