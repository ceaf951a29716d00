#pragma once
/// INTERNAL. Launches the 16-bit kernels for all GPUs, compute capability 8.0 and later. Each instantiation
/// of these functions is compiled in its own source file (instances/). They throw Error if a launch fails.
#include <gradtile/attention/cuda/common/parameters.h>

namespace gradtile::attention::cuda {

template <class T>
void launch_forward(const Bits16ForwardParameters& parameters, const Tiles& tiles, cudaStream_t stream);
template <class T>
void launch_few_queries(const Bits16ForwardParameters& parameters, const SplitParameters& split,
                        cudaStream_t stream);
template <class T>
void launch_backward(const Bits16BackwardParameters& parameters, const FlashPlan& plan, cudaStream_t stream);

/// Enqueues the gradient of a bias. lse_log2 and delta in `parameters` must have been computed for all
/// batches.
template <class T>
void launch_bias_gradient(const Bits16BackwardParameters& parameters, const Tiles& tiles,
                          const BiasGradient& gradient, cudaStream_t stream);
/// Enqueues the gradient of the bias that RuleKind::pair_bias kernels read in tiles.
template <class T>
void launch_pair_bias_gradient(const Bits16BackwardParameters& parameters, const Tiles& tiles,
                               const BiasGradient& gradient, const BiasGradientParts& parts,
                               cudaStream_t stream);

}  // namespace gradtile::attention::cuda
