#pragma once
/// The CPU and CUDA implementations behind dropout.h.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/layers/dropout.h>

namespace gradtile {

/// One call's mask.
struct DropoutMask : DropoutDraws {
    std::int64_t tokens = 1;  ///< rows per sample
};

/// Checks the arguments and returns the mask for one call on x.
DropoutMask dropout_mask(double p, const DropoutKey& key, const Tensor& x);

namespace cpu {
/// y = branch * mask * scale (+ x if defined). y may be branch itself.
void dropout(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& branch,
             const DropoutMask& mask);
}  // namespace cpu
namespace cuda {
GRADTILE_CUDA_TWIN(dropout);
}  // namespace cuda

}  // namespace gradtile
