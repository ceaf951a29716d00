#pragma once
/// The affine layer y = x W^T + b.
#include <string>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/column_sums.h>

namespace gradtile {

struct LinearOptions {
    bool bias = true;
    Init init = Init::normal(0.02);  ///< of the weight; the bias is initialised to zero
};

/// y[.., o] = sum_i x[.., i] W[o, i] + b[o].
///   x [.., in], y [.., out] in the parameters' dtype; weight [out, in], bias [out] or none.
///   dx = dy W,  dW += dy^T x,  db += sum over rows of dy.
/// Sums, and the gradients of weight and bias, are float32 (float64 for float64 values). Results do not
/// depend on the number of threads. Throws Error on other shapes or dtypes.
struct Linear {
    struct Saved {
        Tensor x;  // [.., in]
    };
    Parameter weight, bias;

    Linear() = default;
    /// Declares name.weight and, with options.bias, name.bias.
    Linear(ParameterStore& parameters, const std::string& name, std::int64_t in, std::int64_t out,
           const LinearOptions& options = {});

    std::int64_t in_features() const { return weight.shape()[1]; }
    std::int64_t out_features() const { return weight.shape()[0]; }

    Tensor forward(const Context& ctx, const Tensor& x /*[.., in]*/, Saved& saved) const;
    /// Returns dx [.., in].
    Tensor backward(const Context& ctx, const SummedGradient& dy /*[.., out]*/, const Saved& saved) const;
    /// Like backward, but does not compute dx: for a first layer, and when another operator computes dx.
    void accumulate_gradients(const Context& ctx, const SummedGradient& dy /*[.., out]*/,
                              const Saved& saved) const;
};

}  // namespace gradtile
