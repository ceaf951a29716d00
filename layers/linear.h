#pragma once
/// The affine layer y = x W^T + b.
#include <string>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/column_sums.h>

namespace gradtile {

struct LinearOptions {
    bool bias = true;
    Init init = Init::normal(0.02);  ///< of the weight; the bias starts at zero
};

/// y[.., o] = sum_i x[.., i] W[o, i] + b[o].
///   x [.., in], y [.., out] in the parameters' dtype; weight [out, in], bias [out] or none.
///   dx = dy W,  dW += dy^T x,  db += sum over rows of dy.
/// Sums run in float32 (float64 for float64 values); so are the gradients of weight and bias, whose bits do
/// not depend on the number of threads. Throws Error on shapes or dtypes other than these.
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
    /// The parameters' part of backward alone, for a first layer, whose dx nobody reads.
    void accumulate_gradients(const Context& ctx, const SummedGradient& dy /*[.., out]*/,
                              const Saved& saved) const;
};

}  // namespace gradtile
