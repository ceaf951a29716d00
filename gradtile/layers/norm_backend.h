#pragma once
/// What the two devices implement for layer_norm.h and rms_norm.h: without a mean it is the root-mean-square
/// norm.
#include <gradtile/core/tensor.h>

namespace gradtile {

/// What the backward kernel reads; mean is undefined for RMSNorm.
struct NormInputs {
    Tensor dy, x;       ///< [.., C]
    Tensor mean, rstd;  ///< [rows]
    Tensor weight;      ///< [C]
};
/// What it writes: dx overwritten or accumulated, the parameters' gradients accumulated.
struct NormGradients {
    Tensor dx;  ///< [.., C]
    bool accumulate_dx = false;
    Tensor weight, bias;  ///< [C]; bias undefined when there is none
    Tensor partials;      ///< scratch [blocks, 2, C]
};
/// Rows whose parameter gradients are summed together before the blocks are added in order.
std::int64_t norm_rows_per_partial(std::int64_t rows);

namespace cpu {
void norm_forward(const Context& ctx, const Tensor& y, const Tensor& mean, const Tensor& rstd,
                  const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
void norm_backward(const Context& ctx, const NormGradients& out, const NormInputs& in);
}  // namespace cpu
namespace cuda {
void norm_forward(const Context& ctx, const Tensor& y, const Tensor& mean, const Tensor& rstd,
                  const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
void norm_backward(const Context& ctx, const NormGradients& out, const NormInputs& in);
}  // namespace cuda

}  // namespace gradtile
