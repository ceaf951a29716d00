#pragma once
/// INTERNAL. Parameters for the Hopper kernels (sm_90a), and the functions that launch them.
#include <cuda_runtime_api.h>

#include <gradtile/attention/cuda/16bit/parameters.h>
#include <gradtile/attention/cuda/hopper/biases.h>
#include <gradtile/core/context.h>
#include <gradtile/core/cuda/internal/tensor_map.h>
#include <gradtile/core/internal/unknown_enumerator.h>

namespace gradtile::attention::cuda {

/// How a Hopper kernel computes scores from products. Each rule has its own kernels, since the plain kernels
/// have no free registers.
enum class HopperRule : std::uint8_t {
    products,        ///< scores are products
    distance_terms,  ///< query-key distance terms (ALiBi) are added
    dropout,         ///< P elements are dropped
    formula,         ///< a function applied to products (softcap), distance terms and dropout, each if needed
    /// biases are added; only in the backward pass, up to hopper_biases_max_head_dim, sequences not packed
    biases
};
constexpr bool may_drop(HopperRule rule) {
    return rule == HopperRule::dropout || rule == HopperRule::formula;
}
/// Whether a rule needs registers in the backward kernels: see hopper_backward_tiles().
constexpr bool takes_registers(HopperRule rule) {
    return may_drop(rule) || rule == HopperRule::biases;
}
inline constexpr int hopper_biases_max_head_dim = 64;
/// Whether a rule has kernels for this head dim.
constexpr bool has_hopper_kernels(HopperRule rule, int head_dim, bool is_packed) {
    return rule != HopperRule::biases || (head_dim <= hopper_biases_max_head_dim && !is_packed);
}
inline HopperRule hopper_rule(const ScoreOptions& scores) {
    if (scores.has_biases()) return HopperRule::biases;
    if (scores.changes_products()) return HopperRule::formula;
    if (scores.drops()) return scores.has_distance_terms() ? HopperRule::formula : HopperRule::dropout;
    return scores.has_distance_terms() ? HopperRule::distance_terms : HopperRule::products;
}
/// The rule whose kernel computes `rule` at a head dim. Dropout alone has its own kernels only where GPT-2's
/// shapes need them; more kernels would only lengthen the build.
constexpr HopperRule kernel_rule(HopperRule rule, int head_dim, bool is_packed) {
    const bool has_kernel = !is_packed && (head_dim == 64 || head_dim == 128);
    return rule == HopperRule::dropout && !has_kernel ? HopperRule::formula : rule;
}
/// Calls f<rule>() for the rule that the scores need.
template <class F>
void visit_hopper_rule(const ScoreOptions& scores, F&& f) {
    switch (hopper_rule(scores)) {
        case HopperRule::products:
            return f.template operator()<HopperRule::products>();
        case HopperRule::distance_terms:
            return f.template operator()<HopperRule::distance_terms>();
        case HopperRule::dropout:
            return f.template operator()<HopperRule::dropout>();
        case HopperRule::formula:
            return f.template operator()<HopperRule::formula>();
        case HopperRule::biases:
            throw Error("attention: no Hopper kernel adds biases in the forward pass");
    }
    refuse_unknown("attention: unknown rule of Hopper's kernels");
}
/// Like visit_hopper_rule(), for the backward pass, which also has kernels for biases.
template <class F>
void visit_hopper_backward_rule(const ScoreOptions& scores, F&& f) {
    if (hopper_rule(scores) == HopperRule::biases) return f.template operator()<HopperRule::biases>();
    visit_hopper_rule(scores, f);
}

struct HopperForwardParameters {
    gradtile::cuda::TensorMap q, k, v;  ///< boxes: a thread block's rows, and a key block
    gradtile::cuda::TensorMap o;        ///< 64-row boxes
    float* lse;                         ///< [B, Hq, Sq], natural log
    device::Sizes sizes;
    device::DeviceMask mask;
    int row_blocks;  ///< row blocks per head
    bool pairs;      ///< a task is a pair of row blocks, counted from both ends; else one row block
    device::TaskOrder order;
    int tasks;
    float scale_log2;   ///< log2(e) * scale, positive
    const float* sink;  ///< null: none
    std::int64_t sink_stride;
    PackedOffsets packed;
    PackedTasks row_tasks;  ///< row blocks if packed; before the launch only its memory
    ScoreOptions scores;
};

/// Enqueues the forward pass; fills in the maps, the tasks and their order.
template <class T>
void launch_hopper_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                           HopperForwardParameters parameters, const Context& ctx);

inline constexpr int hopper_few_queries_head_dim = 128;

struct HopperFewQueriesParameters {
    gradtile::cuda::TensorMap k, v;  ///< boxes with FewQueriesTiles::keys keys
    Bits16ForwardParameters rows;
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
    int set_heads = 0;  ///< K/V heads per TaskOrder set
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
    DqRing ring;  ///< the dQ accumulator ring
};

struct HopperBackwardParameters {
    gradtile::cuda::TensorMap q, d_o;    ///< boxes: a row block
    gradtile::cuda::TensorMap k, v;      ///< boxes: a key block
    gradtile::cuda::TensorMap d_k, d_v;  ///< 64-key boxes
    Bits16BackwardParameters rows;       ///< what the kernels before and after this one share with it
    int tasks;
    DqRing ring;
    HopperBiases biases;  ///< set before the launch
};

/// Enqueues the backward pass. rows.next_task must not be null.
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
