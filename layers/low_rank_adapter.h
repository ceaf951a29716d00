#pragma once
/// LoRA (Hu et al. 2021, "LoRA: low-rank adaptation of large language models", section 4.1): a trained
/// low-rank matrix that is added to a frozen weight matrix.
#include <string>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

struct LowRankOptions {
    std::int64_t rank = 0;  ///< r, at least 1
    double alpha = 0.0;     ///< the term's factor is alpha / r
};

/// The term alpha/r B A x in y = W x + alpha/r B A x, for rows x [N, in] and y [N, out] in the parameters'
/// dtype. A is [r, in], B [out, r]. B starts at zero, so the term does, too.
///   with u = alpha/r x A^T and du = alpha/r dy B:   y += u B^T;   dB += dy^T u,   dA += du^T x,   dx += du
///   A.
/// backward computes u again instead of saving it: this costs only r / out of the FLOPs for W x.
struct LowRankAdapter {
    Parameter a, b;
    double scale = 0.0;  ///< alpha / r

    /// Declares name.lora_a, whose elements have variance 1 / in, and name.lora_b.
    LowRankAdapter(ParameterStore& parameters, const std::string& name, std::int64_t in, std::int64_t out,
                   const LowRankOptions& options);

    /// Adds the term to y. y may share memory with x, because the term is computed first.
    void add_forward(const Context& ctx, const Tensor& y /*[N, out]*/, const Tensor& x /*[N, in]*/) const;
    /// Writes A's and B's gradients as Parameter::begin_gradient_write() says. Adds to dx, unless dx is
    /// undefined. dx may share memory with dy and x, because it is written last.
    void add_backward(const Context& ctx, const Tensor& dx /*[N, in]*/, const Tensor& dy /*[N, out]*/,
                      const Tensor& x /*[N, in]*/) const;
};

}  // namespace gradtile
