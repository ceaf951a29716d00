#pragma once
/// The CPU and CUDA implementations behind WeightedSum (learned_factors.h). All tensors but the factors and
/// the partial sums have one shape and are contiguous and not empty.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/layers/learned_factors.h>

namespace gradtile {

struct WeightedTerm {
    Tensor x;
    Tensor factor;                  ///< [1], in x's dtype
    Tensor gradient = {};           ///< backward: receives factor * dy
    bool adds_to_gradient = false;  ///< backward: adds factor * dy instead
};

namespace cpu {
void weighted_sum(const Context& ctx, const Tensor& y, std::span<const WeightedTerm> terms);
/// Writes the terms' gradients; the first one may be dy itself. partials [terms, parts, 1] receives the sums
/// over dy x_k in the parts, in accumulator_of(dtype).
void weighted_sum_backward(const Context& ctx, const Tensor& partials, const Tensor& dy,
                           std::span<const WeightedTerm> terms);
/// How many partial sums there are for this many elements.
std::int64_t weighted_sum_parts(std::int64_t elements);
}  // namespace cpu
namespace cuda {
GRADTILE_CUDA_TWIN(weighted_sum);
GRADTILE_CUDA_TWIN(weighted_sum_backward);
GRADTILE_CUDA_TWIN(weighted_sum_parts);
}  // namespace cuda

}  // namespace gradtile
