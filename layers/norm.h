#pragma once
/// Normalisation over the last axis: LayerNorm (Ba, Kiros, Hinton 2016, eq. 3 and 4) and RMSNorm (Zhang and
/// Sennrich 2019, eq. 4).
#include <string>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/dropout.h>
#include <gradtile/layers/pass_hooks.h>

namespace gradtile {

/// A norm over the last axis: y = (x - mean) / sqrt(var + eps) * (weight_offset + weight) + bias.
struct NormParameters {
    Tensor weight;     ///< [C]
    Tensor bias = {};  ///< [C] or undefined
    double eps = 1e-5;
    bool centred = true;         ///< LayerNorm; false: RMSNorm, whose mean is 0
    double weight_offset = 0.0;  ///< added to the weight before rounding; 1 in Gemma's norms
};

/// What LayerNorm and RMSNorm have in common. Rows of x [.., C] are contiguous; leading axes may be strided
/// (two groups, see rows.h), so that heads [B,S,H,D] in a packed projection can be normalised. Statistics are
/// float32 (float64 for float64 x).
struct NormLayer {
    struct Saved {
        Tensor x;           ///< [.., C]: the input, or a residual's sum
        Tensor mean, rstd;  ///< [rows]; RMSNorm has no mean
    };

    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const;
    /// Normalises the residual's sum and stores the sum in saved.x: backward's dx is the sum's gradient.
    Tensor forward(const Context& ctx, const Residual& residual, Saved& saved) const;
    /// Returns dx, contiguous. Writes the parameters' gradients as Parameter::begin_gradient_write() says.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved,
                    const BackwardHooks& hooks = {}) const;
    /// Adds the gradient with respect to x to dx, which already holds the residual stream's other gradient.
    /// Returns dx, on a GPU with its column sums if requested.
    SummedGradient backward_add(const Context& ctx, const Tensor& dy, const Saved& saved, const Tensor& dx,
                                ColumnSums sums = ColumnSums::skip, const BackwardHooks& hooks = {}) const;

    NormParameters parameters() const;
    Parameter weight, bias;  ///< the bias may be undefined
    double eps = 1e-5;
    bool centred = true;
    double weight_offset = 0.0;
};

/// y = (x - mean(x)) / sqrt(var(x) + eps) * (weight_offset + weight) + bias for each row.
struct LayerNorm : NormLayer {
    /// Registers name.weight, which starts at 1 - weight_offset, and, when bias is set, name.bias (zeros),
    /// both [C].
    LayerNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, bool bias,
              double eps = 1e-5, double weight_offset = 0.0);
};

/// y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight) for each row.
struct RMSNorm : NormLayer {
    /// Registers name.weight [C], which starts at 1 - weight_offset.
    RMSNorm(ParameterStore& parameters, const std::string& name, std::int64_t width, double eps = 1e-5,
            double weight_offset = 0.0);
};

}  // namespace gradtile
