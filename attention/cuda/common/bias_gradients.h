#pragma once
/// INTERNAL. Bias and sink gradients on the GPU. A bias gradient sums dS over the axes along which the bias
/// is broadcast. One thread block computes each gradient element alone, in a fixed order: the block
/// recomputes P and dS for all pairs that contribute to the element. So the kernels need neither atomic
/// additions nor scratch memory, and their results are bitwise identical in every run.
#include <cuda_runtime_api.h>

#include <gradtile/attention/cuda/common/bias_gradient.h>
#include <gradtile/attention/cuda/common/packed_tasks.h>
#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cuda {

/// Computes into.sink = -(sum over rows of exp(sink - LSE) D). lse [B, H, Sq]; D = delta_factor * delta[(b *
/// H + h) * delta_rows + i]. With `padded`, row i of packed sequences is at its padded row instead.
template <class A>
void launch_sink_gradient(const Context& ctx, const ScoreOptions& scores, const Tensor& lse, const A* delta,
                          std::int64_t delta_rows, double delta_factor, const Tensor& into,
                          const PackedOffsets& padded = {});

/// Inputs for the kernels that compute bias gradients pair by pair. T is q's dtype.
template <class T>
struct BiasGradientInputs {
    using A = Accumulator<T>;
    Tensor q, k, v, o, d_o;  ///< in layouts that kernels can read
    const A* lse;            ///< [B, H, Sq], natural log
    const A* lse_remainder;  ///< [B, H, Sq]; null: 0
    /// [B, H, Sq]: D / delta_factor; null: the kernels compute D from o and d_lse.
    const A* delta = nullptr;
    A delta_factor = 1;
    const A* d_lse = nullptr;      ///< [B, H, Sq]; null: 0
    const int* enabled = nullptr;  ///< the kernels do nothing if this is 0; null: they compute
};

/// Computes the bias gradients for which `into` has tensors. Packed sequences have no faster kernels, in no
/// dtype.
template <class T>
void launch_bias_gradients(const Context& ctx, const ResolvedOptions& options,
                           const BiasGradientInputs<T>& inputs, const Gradients& into);

}  // namespace gradtile::attention::cuda
