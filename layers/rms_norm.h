#pragma once
/// Root-mean-square normalisation over the last axis (Zhang and Sennrich 2019, eq. 4).
#include <string>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/residual.h>

namespace gradtile {

/// y = x / sqrt(mean(x^2) + eps) * weight, row by row; x [.., C]. Rows are contiguous; leading axes may be
/// strided (two groups, see rows.h), so that heads [B,S,H,D] of a packed projection can be normalised.
struct RMSNorm {
    struct Saved {
        Tensor x;     ///< [.., C], the input itself, or the residual's sum
        Tensor rstd;  ///< [rows], float32 (float64 for float64 x)
    };

    /// Registers name.weight [C] (ones).
    RMSNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, double eps = 1e-5);

    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const;
    /// Of the residual's sum, which backward is about and which is left in saved.x.
    Tensor forward(const Context& ctx, const Residual& residual, Saved& saved) const;
    /// dx, contiguous; the weight's gradient goes where Parameter::begin_gradient_write() says.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;
    /// dx += the gradient. Returns dx, with its column sums where they are wanted and come along.
    SummedGradient backward_add(const Context& ctx, const Tensor& dy, const Saved& saved, const Tensor& dx,
                                ColumnSums sums = ColumnSums::unwanted) const;

    Parameter weight;
    double eps;
};

}  // namespace gradtile
