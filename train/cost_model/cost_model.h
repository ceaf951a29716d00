#pragma once
/// How long a data-parallel training step takes on many GPUs, from constants fitted to measured steps.
/// docs/parallel_cost_model.md derives it and says what was never measured.
#include <string>
#include <vector>

#include <gradtile/train/cost_model/collective_cost.h>
#include <gradtile/train/step_work.h>
#include <gradtile/train/train_config.h>

namespace gradtile {

/// What a kind of GPU and the links between a node's GPUs do; all per second, or seconds.
struct CostConstants {
    double product_flops;        ///< matrix products in bfloat16
    double attention_flops;      ///< in bfloat16
    double product_flops_f32;    ///< in float32
    double attention_flops_f32;  ///< in float32
    double memory_bytes;         ///< of memory-bound passes
    double update_bytes;         ///< of the gradient norm and the optimizer, which walk flat blocks
    double block_seconds;        ///< what a block's kernels cost beside their work, forward and backward
    double nvlink_bytes;         ///< Link::bytes_per_second within a node
    double nvlink_latency;       ///< Link::latency within a node
    double contention;           ///< part of the compute that a collective takes while it runs beside it

    Link nvlink() const { return {nvlink_bytes, nvlink_latency}; }
};

/// Calls visit(name, member, scale, unit) for every constant; member / scale is in the unit people use.
template <class Constants, class Visit>
void visit_constants(Constants& c, Visit&& visit) {
    visit("product_flops", c.product_flops, 1e12, "TFLOP/s");
    visit("attention_flops", c.attention_flops, 1e12, "TFLOP/s");
    visit("product_flops_f32", c.product_flops_f32, 1e12, "TFLOP/s");
    visit("attention_flops_f32", c.attention_flops_f32, 1e12, "TFLOP/s");
    visit("memory_bytes", c.memory_bytes, 1e9, "GB/s");
    visit("update_bytes", c.update_bytes, 1e9, "GB/s");
    visit("block_seconds", c.block_seconds, 1e-6, "us");
    visit("nvlink_bytes", c.nvlink_bytes, 1e9, "GB/s");
    visit("nvlink_latency", c.nvlink_latency, 1e-6, "us");
    visit("contention", c.contention, 1.0, "");
}

/// NVIDIA H200s with NVLink 18 between all pairs, from measurements that `gradtile plan --fit` was given.
CostConstants h200_constants();
/// What those constants stand on, and what was not measured: lines for users.
std::vector<std::string> h200_provenance();

/// Parameters that a collective takes at once, in the order of the flat blocks.
struct ParameterBucket {
    double elements = 0;
    /// Of its first parameter: 0 the embeddings, 1 .. layers the blocks, then the head. Forward needs it
    /// first there, and backward completes its last gradient there.
    std::size_t stage = 0;
    /// Under ZeRO-1: cut into equal parts, reduced and gathered as such. Otherwise handed out by whole
    /// parameters (see DataParallel): summed in every process, broadcast by their owners.
    bool equal_parts = true;
};

/// One process's part of a step, as far as its time depends on it.
struct ParallelStep {
    StepWork work;  ///< of a micro-batch
    DType dtype = DType::f32;
    std::int64_t layers = 0;
    std::int64_t accumulation_steps = 1;
    bool zero = false;  ///< ZeRO-1
    std::vector<ParameterBucket> buckets;
    double elements() const;  ///< of all buckets
};
/// What each of `gpus` processes does in a step of a valid run with a vocabulary.
ParallelStep parallel_step(const TrainConfig& config, std::int64_t gpus);

struct StepCost {
    double compute = 0;  ///< seconds of all forward and backward passes, alone
    double exposed = 0;  ///< what communication adds: waiting for it, and contention with it
    double update = 0;   ///< gradient norm and optimizer
    WireBytes wire;      ///< of each GPU
    double seconds() const { return compute + exposed + update; }
};
StepCost step_cost(const ParallelStep& step, const CostConstants& constants, const GpuLayout& layout,
                   const Links& links);

/// Seconds that such work takes one GPU.
double work_seconds(const Work& work, DType dtype, const CostConstants& constants);

}  // namespace gradtile
