#pragma once
/// INTERNAL. The 16-bit calls that the Hopper kernels compute. The kernels for sm_80 and later compute all
/// others.
#include <cuda_runtime_api.h>

#include <gradtile/attention/cuda/hopper/parameters.h>
#include <gradtile/attention/cuda/hopper/tiles.h>
#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cuda {

/// Returns why a call's forward pass must not use the Hopper kernels; nullptr if it may. `tensors` are all
/// tensors that the kernels copy by TMA, first q, k and v. The environment variable
/// GRADTILE_HOPPER_ATTENTION=off turns these kernels off.
const char* why_not_hopper(const ResolvedOptions& options, std::initializer_list<Tensor> tensors);

/// Enqueues the forward pass of a call for which why_not_hopper() returned nullptr. `row_tasks` is memory for
/// packed sequences' tasks, or null.
void hopper_forward(const Context& ctx, const ResolvedOptions& options, const Tensor& q, const Tensor& k,
                    const Tensor& v, const Tensor& o, const Tensor& lse, PackedTask* row_tasks);

/// Returns why few queries must not use the Hopper kernel; nullptr if they may.
const char* why_not_hopper_few_queries(const ResolvedOptions& options, const FewQueriesPlan& plan,
                                       int head_dim, std::initializer_list<Tensor> tensors);
/// Enqueues the forward pass for few queries, for which why_not_hopper_few_queries() returned nullptr.
void hopper_few_queries(const Context& ctx, const Tensor& k, const Tensor& v,
                        const Bits16ForwardParameters& parameters, const SplitParameters& split);

/// Returns why a call's backward pass must not use the Hopper kernels; nullptr if it may. The backward pass
/// has two more reasons: heads that another kernel computes faster, and score rules above head dim 128.
const char* why_not_hopper_backward(const ResolvedOptions& options, const device::Sizes& sizes,
                                    std::int64_t batch_heads, std::initializer_list<Tensor> tensors);

/// The dQ accumulator ring that hopper_backward uses; it has no slots if accumulators for all heads are
/// needed. A ForcedKernelChoice makes the ring smaller or larger.
DqRing d_q_ring(const ResolvedOptions& options, const device::Sizes& sizes, std::int64_t batch_heads,
                std::int64_t padded_rows);

/// The backward tiles, from a ForcedKernelChoice or the policy; up to head dim
/// hopper_backward_keys_max_head_dim.
HopperBackwardTiles chosen_hopper_backward_tiles(int head_dim, const ScoreOptions& scores);

/// Enqueues the backward pass of a call for which why_not_hopper_backward() returned nullptr. Uses next_task
/// even if the call is not deterministic, and the ring's counters, which follow next_task in memory.
void hopper_backward(const Context& ctx, const HopperBackwardTensors& tensors,
                     const Bits16BackwardParameters& parameters);

/// Enqueues the gradient of the pair bias (the [queries, keys] bias matrix), after hopper_backward(). Sums
/// neither axis.
void hopper_pair_bias_gradient(const Context& ctx, const HopperBackwardTensors& tensors,
                               const Bits16BackwardParameters& parameters, const BiasGradient& gradient,
                               const BiasGradientParts& parts);

}  // namespace gradtile::attention::cuda
