#pragma once
/// The time that a data-parallel training step takes on many GPUs, from constants fitted to measured steps.
/// docs/parallel_cost_model.md derives the model and lists what was never measured.
#include <string>
#include <vector>

#include <gradtile/tools/plan/collective_cost.h>
#include <gradtile/tools/plan/step_work.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile {

/// Bytes in the unit of a GPU's memory.
inline constexpr double gib = 1 << 30;

/// Speeds per second for one GPU kind and for the links within a node, and latencies in seconds.
struct CostConstants {
    double product_flops;        ///< matrix products in bfloat16
    double attention_flops;      ///< attention in bfloat16
    double product_flops_f32;    ///< matrix products in float32
    double attention_flops_f32;  ///< attention in float32
    double memory_bytes;         ///< bytes that memory-bound passes read and write
    double update_bytes;    ///< bytes that the gradient norm and the optimizer read and write in flat blocks
    double block_seconds;   ///< fixed time for a block's kernels, forward and backward, which does not depend
                            ///< on their work
    double nvlink_bytes;    ///< Link::bytes_per_second within a node
    double nvlink_latency;  ///< Link::latency within a node
    double contention;      ///< fraction by which a running collective slows computation

    Link nvlink() const { return {nvlink_bytes, nvlink_latency}; }
};

/// Calls visit(name, member, scale, unit) for every constant; member / scale is the number in `unit`, for
/// output.
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

/// Returns the constants for NVIDIA H200s with NVLink 18 between all pairs, which `gradtile plan --fit`
/// fitted to measurements.
CostConstants h200_constants();
/// Bytes per second in each direction between a GPU and its host. Assumed, not measured: 16 lanes of PCIe 5.
inline constexpr double assumed_bus_bytes = 50e9;
/// Returns lines for users: which measurements the constants come from, and what was not measured.
std::vector<std::string> h200_provenance();

/// Parameters that one collective transfers, in flat-block order.
struct ParameterBucket {
    double elements = 0;
    /// The stage that contains the bucket's first parameter: 0 for the embeddings, 1 .. layers for the
    /// blocks, layers + 1 for the head. The forward pass first needs the bucket in this stage, and the
    /// backward pass completes its last gradient there.
    std::size_t stage = 0;
    bool is_read_again = false;  ///< a tied head reads it, too
    /// Only for ZeRO. If true, the bucket is cut into equal parts, which are reduce-scattered and gathered.
    /// If false, whole parameters have owners (see DataParallel): every process sums the bucket, and the
    /// owners broadcast their values.
    bool equal_parts = true;
};

/// One process's step: the numbers that determine the step's time.
struct ParallelStep {
    StepWork work;  ///< work per micro-batch
    DType dtype = DType::f32;
    std::int64_t layers = 0;
    std::int64_t accumulation_steps = 1;
    int zero = 0;  ///< ZeRO level of the trained parameters
    std::vector<ParameterBucket> buckets;
    /// ZeRO-3 with adapters: frozen parameters, which passes gather as they gather values otherwise.
    /// Quantized ones count as elements of `dtype` with as many bytes.
    std::vector<ParameterBucket> frozen_buckets = {};
    double update_flops = 0;  ///< the optimizer's matrix products, in the process that has most
    double elements() const;  ///< parameters in all buckets
};
/// Returns the step that each of `gpus` processes runs. `config` is valid and has a vocabulary.
ParallelStep parallel_step(const TrainConfig& config, std::int64_t gpus);

struct StepCost {
    double compute = 0;  ///< seconds for all forward and backward passes without communication
    double exposed = 0;  ///< seconds that communication adds: waiting for it, and contention with it
    double update = 0;   ///< seconds for gradient norm and optimizer
    WireBytes wire;      ///< bytes that each GPU sends
    double seconds() const { return compute + exposed + update; }
};
StepCost step_cost(const ParallelStep& step, const CostConstants& constants, const GpuLayout& layout,
                   const Links& links);

/// Returns the seconds that the work takes on one GPU.
double work_seconds(const Work& work, DType dtype, const CostConstants& constants);

}  // namespace gradtile
