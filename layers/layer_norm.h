#pragma once
/// Layer normalisation over the last axis (Ba, Kiros, Hinton 2016, eq. 3 and 4).
#include <string>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/residual.h>

namespace gradtile {

/// y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, row by row; x [.., C]. Rows are contiguous;
/// leading axes may be strided (two groups, see rows.h). Statistics are float32 (float64 for float64 x).
struct LayerNorm {
    struct Saved {
        Tensor x;           ///< [.., C], the input itself, or the residual's sum
        Tensor mean, rstd;  ///< [rows]
    };

    /// Registers name.weight (ones) and, when bias is set, name.bias (zeros), both [C].
    LayerNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, bool bias,
              double eps = 1e-5);

    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const;
    /// Of the residual's sum, which backward is about and which is left in saved.x.
    Tensor forward(const Context& ctx, const Residual& residual, Saved& saved) const;
    /// dx, contiguous; the parameters' gradients go where Parameter::begin_gradient_write() says.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;
    /// dx += the gradient: where a residual branch leaves the stream, dx already holds the stream's gradient.
    /// Returns dx, with its column sums where they are wanted and come along.
    SummedGradient backward_add(const Context& ctx, const Tensor& dy, const Saved& saved, const Tensor& dx,
                                ColumnSums sums = ColumnSums::unwanted) const;

    Parameter weight, bias;
    double eps;
};

}  // namespace gradtile
