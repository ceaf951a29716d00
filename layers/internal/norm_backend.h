#pragma once
/// What the two devices implement for layer_norm.h and rms_norm.h: without a mean it is the root-mean-square
/// norm.
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/residual.h>

namespace gradtile {

/// What the backward kernel reads; mean is undefined for RMSNorm.
struct NormInputs {
    Tensor dy, x;       ///< [.., C]
    Tensor mean, rstd;  ///< [rows]
    Tensor weight;      ///< [C]
};
/// What it writes: dx and the parameters' gradients, overwritten or accumulated.
struct NormGradients {
    Tensor dx;  ///< [.., C]
    bool accumulate_dx = false;
    GradientTarget weight = {}, bias = {};  ///< [C]; bias undefined when there is none
    Tensor partials = {};     ///< scratch [norm_partials(rows, C), 2, C] in accumulator_of(x.dtype())
    Tensor column_sums = {};  ///< of dx, in parts [norm_partials(rows, C), C]; undefined where not wanted
};

/// What the forward kernel writes; mean is undefined for RMSNorm.
struct NormOutputs {
    Tensor y;           ///< [.., C]
    Tensor mean, rstd;  ///< [rows]
};

namespace cpu {
/// The residual's sum takes its branch's place.
void norm_forward(const Context& ctx, const NormOutputs& out, const Residual& residual, const Tensor& weight,
                  const Tensor& bias, double eps);
void norm_backward(const Context& ctx, const NormGradients& out, const NormInputs& in);
/// Blocks of rows whose parameter gradients are summed together before the blocks are added in order.
std::int64_t norm_partials(std::int64_t rows, std::int64_t width);
}  // namespace cpu
namespace cuda {
void norm_forward(const Context& ctx, const NormOutputs& out, const Residual& residual, const Tensor& weight,
                  const Tensor& bias, double eps);
void norm_backward(const Context& ctx, const NormGradients& out, const NormInputs& in);
std::int64_t norm_partials(std::int64_t rows, std::int64_t width);
}  // namespace cuda

}  // namespace gradtile
