#pragma once
/// INTERNAL. Parameters for the Hopper kernels (sm_90a), and the functions that launch them.
#include <cuda_runtime_api.h>

#include <gradtile/attention/cuda/common/parameters.h>
#include <gradtile/attention/cuda/sm90/biases.h>
#include <gradtile/attention/cuda/sm90/rules.h>
#include <gradtile/core/context.h>
#include <gradtile/core/cuda/internal/tensor_map.h>
#include <gradtile/core/internal/unknown_enumerator.h>

namespace gradtile::attention::cuda {

/// Calls f<rule>() for the rule that the scores need.
template <class F>
void visit_hopper_rule(const ScoreOptions& scores, bool has_row_ranges, F&& f) {
    switch (hopper_rule(scores, has_row_ranges)) {
        case HopperRule::products:
            return f.template operator()<HopperRule::products>();
        case HopperRule::distance_terms:
            return f.template operator()<HopperRule::distance_terms>();
        case HopperRule::dropout:
            return f.template operator()<HopperRule::dropout>();
        case HopperRule::formula:
            return f.template operator()<HopperRule::formula>();
        case HopperRule::row_ranges:
            return f.template operator()<HopperRule::row_ranges>();
        case HopperRule::biases:
            throw Error("attention: no Hopper kernel adds biases in the forward pass");
    }
    refuse_unknown("attention: unknown rule of Hopper's kernels");
}
/// Like visit_hopper_rule(), for the backward pass, which also has kernels for biases.
template <class F>
void visit_hopper_backward_rule(const ScoreOptions& scores, bool has_row_ranges, F&& f) {
    if (hopper_rule(scores, has_row_ranges) == HopperRule::biases)
        return f.template operator()<HopperRule::biases>();
    visit_hopper_rule(scores, has_row_ranges, f);
}

struct HopperForwardParameters {
    gradtile::cuda::TensorMap q, k, v;  ///< boxes: a thread block's rows, and a key block
    gradtile::cuda::TensorMap o;        ///< 64-row boxes
    float* lse;                         ///< [B, Hq, Sq], natural log
    device::Sizes sizes;
    device::DeviceMask mask;
    int row_blocks;           ///< row blocks per head
    bool pairs;               ///< a task is a pair of row blocks, counted from both ends; else one row block
    device::TaskOrder order;  ///< before the launch only its cached_heads
    int tasks;
    float scale_log2;   ///< log2(e) * scale, positive
    const float* sink;  ///< null: none
    std::int64_t sink_stride;
    PackedOffsets packed;
    PackedTasks row_tasks;  ///< row blocks if packed; before the launch only its memory
    ScoreOptions scores;
    DeviceRowRanges row_ranges;
    int* non_finite;  ///< set if O is not finite; null without row ranges
    int diag = 0;
};

/// Enqueues the forward pass; fills in the maps, the tasks and their order. `tiles` are a plan's.
template <class T>
void launch_hopper_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                           HopperForwardParameters parameters, const Tiles& tiles, const Context& ctx);

struct HopperFewQueriesParameters {
    gradtile::cuda::TensorMap k, v;  ///< boxes with FewQueriesTiles::keys keys
    Bits16ForwardParameters params;
    SplitParameters split;
};

/// Enqueues the forward pass for few queries and head dims up to hopper_few_queries_head_dim; fills in the
/// maps.
template <class T>
void launch_hopper_few_queries(const Tensor& k, const Tensor& v, HopperFewQueriesParameters parameters,
                               const Context& ctx);

/// Float32 dQ accumulators that exist only for the heads in flight. The query heads of one K/V head share a
/// slot; K/V head i (counted over batch * K/V heads) uses slot i % slots after K/V head i - slots.
struct DqRing {
    int slots = 0;      ///< at least set_heads; 0: accumulators exist for all heads
    int set_heads = 0;  ///< K/V heads per TaskOrder set, also without slots
    // Set before the launch.
    int row_blocks = 0;                 ///< per query head, padded
    int finished_per_use = 0;           ///< row blocks that see keys, in all query heads that share a slot
    bool has_unseen_rows = false;       ///< whether some row block sees no key
    std::int32_t* additions = nullptr;  ///< [slots, group, row blocks]: key blocks that have added
    std::int32_t* finished = nullptr;   ///< [slots]: row blocks whose dQ is stored. Both count all uses.
};

/// Backward tensors, in layouts that TMA can copy.
struct HopperBackwardTensors {
    Tensor q, k, v, d_o;
    Tensor d_k, d_v;
    DqRing ring;
};

struct HopperBackwardParameters {
    gradtile::cuda::TensorMap q, d_o;    ///< boxes: a row block
    gradtile::cuda::TensorMap k, v;      ///< boxes: a key block
    gradtile::cuda::TensorMap d_k, d_v;  ///< 64-key boxes
    Bits16BackwardParameters params;     ///< what the kernels before and after this one share with it
    int tasks;
    DqRing ring;
    HopperBiases biases;  ///< set before the launch
};

/// Enqueues the backward pass. parameters.next_task must not be null.
template <class T>
void launch_hopper_backward(const HopperBackwardTensors& tensors, const Bits16BackwardParameters& parameters,
                            const Context& ctx);
/// Enqueues the backward pass for head dims above hopper_backward_keys_max_head_dim.
template <class T>
void launch_hopper_backward_columns(const HopperBackwardTensors& tensors,
                                    const Bits16BackwardParameters& parameters, const Context& ctx);

/// Enqueues the gradient of the pair bias (the [queries, keys] bias matrix); the gradient sums neither axis.
/// lse_log2 and delta in `parameters` must have been computed for all batches.
template <class T>
void launch_hopper_pair_bias_gradient(const HopperBackwardTensors& tensors,
                                      const Bits16BackwardParameters& parameters,
                                      const BiasGradient& gradient, const BiasGradientParts& parts,
                                      const Context& ctx);

}  // namespace gradtile::attention::cuda
