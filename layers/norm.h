#pragma once
/// Normalisation over the last axis: LayerNorm (Ba, Kiros, Hinton 2016, eq. 3 and 4) and RMSNorm (Zhang and
/// Sennrich 2019, eq. 4).
#include <string>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/dropout.h>

namespace gradtile {

/// y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias for each row of x [.., C]. Rows are contiguous;
/// leading axes may be strided (two groups, see rows.h). Statistics are float32 (float64 for float64 x).
struct LayerNorm {
    struct Saved {
        Tensor x;           ///< [.., C]: the input, or a residual's sum
        Tensor mean, rstd;  ///< [rows]
    };

    /// Registers name.weight (ones) and, when bias is set, name.bias (zeros), both [C].
    LayerNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, bool bias,
              double eps = 1e-5);

    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const;
    /// Normalises the residual's sum and stores the sum in saved.x. backward then computes the gradient with
    /// respect to the sum.
    Tensor forward(const Context& ctx, const Residual& residual, Saved& saved) const;
    /// Returns dx, contiguous. Writes the parameters' gradients as Parameter::begin_gradient_write() says.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;
    /// Adds the gradient with respect to x to dx, which already holds the residual stream's other gradient.
    /// Returns dx, on a GPU with its column sums if requested.
    SummedGradient backward_add(const Context& ctx, const Tensor& dy, const Saved& saved, const Tensor& dx,
                                ColumnSums sums = ColumnSums::skip) const;

    Parameter weight, bias;
    double eps;
};

/// y = x / sqrt(mean(x^2) + eps) * weight for each row of x [.., C]. Rows are contiguous; leading axes may be
/// strided (two groups, see rows.h), so that heads [B,S,H,D] in a packed projection can be normalised.
struct RMSNorm {
    struct Saved {
        Tensor x;     ///< [.., C]: the input, or a residual's sum
        Tensor rstd;  ///< [rows], float32 (float64 for float64 x)
    };

    /// Registers name.weight [C] (ones).
    RMSNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, double eps = 1e-5);

    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const;
    /// Normalises the residual's sum and stores the sum in saved.x. backward then computes the gradient with
    /// respect to the sum.
    Tensor forward(const Context& ctx, const Residual& residual, Saved& saved) const;
    /// Returns dx, contiguous. Writes the weight's gradient as Parameter::begin_gradient_write() says.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;
    /// Adds the gradient with respect to x to dx. Returns dx, on a GPU with its column sums if requested.
    SummedGradient backward_add(const Context& ctx, const Tensor& dy, const Saved& saved, const Tensor& dx,
                                ColumnSums sums = ColumnSums::skip) const;

    Parameter weight;
    double eps;
};

}  // namespace gradtile
