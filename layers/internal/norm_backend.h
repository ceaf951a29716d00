#pragma once
/// The CPU and CUDA implementations behind norm.h. An undefined mean selects RMSNorm.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/layers/norm.h>

namespace gradtile {

/// Inputs for norm_backward.
struct NormInputs {
    Tensor dy, x;       ///< [.., C]
    Tensor mean, rstd;  ///< [rows]
    Tensor weight;      ///< [C]
    double weight_offset = 0.0;
};
/// Outputs from norm_backward: dx and the parameter gradients, each overwritten or accumulated.
struct NormGradients {
    Tensor dx;  ///< [.., C]
    bool accumulate_dx = false;
    /// [C]; undefined for an absent bias, and both undefined for frozen parameters.
    GradientTarget weight = {}, bias = {};
    Tensor partials = {};     ///< scratch [norm_partials(rows, C), 2, C] in accumulator_of(x.dtype())
    Tensor column_sums = {};  ///< dx's partial sums [norm_partials(rows, C), C], or undefined
};

/// Outputs from norm_forward.
struct NormOutputs {
    Tensor y;           ///< [.., C]
    Tensor mean, rstd;  ///< [rows]
};

/// Returns the normalised x, without the values that backward needs.
Tensor normalized(const Context& ctx, const Tensor& x, const NormParameters& norm);

namespace cpu {
/// Stores the residual's sum in its branch.
void norm_forward(const Context& ctx, const NormOutputs& out, const Residual& residual,
                  const NormParameters& norm);
void norm_backward(const Context& ctx, const NormGradients& out, const NormInputs& in);
/// How many partial sums each parameter gradient has. Each covers one row block; they are added in order.
std::int64_t norm_partials(std::int64_t rows, std::int64_t width);
}  // namespace cpu
namespace cuda {
GRADTILE_CUDA_TWIN(norm_forward);
GRADTILE_CUDA_TWIN(norm_backward);
GRADTILE_CUDA_TWIN(norm_partials);
}  // namespace cuda

}  // namespace gradtile
