#pragma once
/// INTERNAL. Runs plans of the families sm90 and few_sm90, and decode()'s kernel for warpgroups. The
/// functions throw Error in a build without code for sm_90a.
#include <gradtile/attention/cuda/sm90/parameters.h>
#include <gradtile/attention/cuda/sm90/tiles.h>

namespace gradtile::attention {
struct DecodePlan;
struct DecodeProblem;
}  // namespace gradtile::attention
namespace gradtile::attention::cuda {
namespace decoding {
template <class T>
struct DecodeParameters;
}

/// Why kernels of sm_90a cannot run on a GPU; null if they can.
const char* why_no_sm90(Device device);

/// Enqueues a forward pass. `row_tasks` is memory for packed sequences' tasks, or null.
void hopper_forward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                    PackedTask* row_tasks, const DeviceRowRanges& row_ranges);

/// Enqueues a forward pass for few queries.
void hopper_few_queries(const Context& ctx, const Tensor& k, const Tensor& v,
                        const Bits16ForwardParameters& parameters, const SplitParameters& split);

/// Enqueues a launch of a backward pass. Uses next_task even if the call is not deterministic, and the ring's
/// counters, which follow next_task in memory. `tensors.ring` has its slots, and the launch's heads per set.
void hopper_backward(const Context& ctx, const FlashPlan& plan, const HopperBackwardTensors& tensors,
                     const Bits16BackwardParameters& parameters);

/// Enqueues the gradient of the pair bias (the [queries, keys] bias matrix), after hopper_backward(). Sums
/// neither axis.
void hopper_pair_bias_gradient(const Context& ctx, const HopperBackwardTensors& tensors,
                               const Bits16BackwardParameters& parameters, const BiasGradient& gradient,
                               const BiasGradientParts& parts);

/// Enqueues a decode() call whose plan has DecodeKernel::warpgroups.
template <class T>
void launch_hopper_decode(const Context& ctx, const DecodeProblem& problem, const DecodePlan& plan,
                          const decoding::DecodeParameters<T>& parameters);

}  // namespace gradtile::attention::cuda
