#pragma once
/// The affine layer y = x W^T + b.
#include <optional>
#include <string>
#include <utility>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/activation.h>
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/dropout.h>
#include <gradtile/layers/norm.h>
#include <gradtile/layers/pass_hooks.h>

namespace gradtile {

/// The input of a product: x, or norm(x), which is not computed yet so that the product can compute it in its
/// own kernel.
struct Normed {
    Tensor x;  ///< [.., in]
    std::optional<NormParameters> norm = {};
    bool inference = false;  ///< no backward pass follows, so that one kernel may compute norm and product

    Normed(Tensor input) : x(std::move(input)) {}
    Normed(Tensor input, std::optional<NormParameters> of, bool in_inference)
        : x(std::move(input)), norm(std::move(of)), inference(in_inference) {}
    /// Computes the norm if there is one, and returns the result [.., in].
    Tensor value(const Context& ctx) const;
};

struct LowRankOptions {
    std::int64_t rank = 0;  ///< r, at least 1
    double alpha = 0.0;     ///< the term's factor is alpha / r
};

/// LoRA (Hu et al. 2021, "LoRA: low-rank adaptation of large language models", section 4.1): a trained
/// low-rank matrix that is added to a frozen weight matrix.
///
/// The term alpha/r B A x in y = W x + alpha/r B A x, for rows x [N, in] and y [N, out] in the parameters'
/// dtype. A is [r, in], B [out, r]. B starts at zero, so the term does, too.
///   with u = alpha/r x A^T and du = alpha/r dy B:
///   y += u B^T;   dB += dy^T u;   dA += du^T x;   dx += du A
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

struct LinearOptions {
    bool bias = true;
    Init init = Init::normal(0.02);  ///< applies to the weight; the bias starts at zero
};

/// y[.., o] = sum_i x[.., i] W[o, i] + b[o].
///   x [.., in], y [.., out] in the parameters' dtype; weight [out, in], bias [out] or none.
///   dx = dy W,  dW += dy^T x,  db += sum over rows of dy.
/// With an adapter, y and the gradients also have LowRankAdapter's terms. Frozen parameters get no gradient.
/// A quantized weight (ParameterStore::quantize) is dequantized in each pass, and the memory for it is free
/// again after the product.
/// Sums, and the gradients of weight and bias, are float32 (float64 for float64 values). Results do not
/// depend on the number of threads. Throws Error on other shapes or dtypes.
struct Linear {
    struct Saved {
        Tensor x;  // [.., in]; undefined unless backward needs it
    };
    Parameter weight, bias;
    std::optional<LowRankAdapter> adapter;

    Linear() = default;
    /// Declares name.weight and, with options.bias, name.bias.
    Linear(ParameterStore& parameters, const std::string& name, std::int64_t in, std::int64_t out,
           const LinearOptions& options = {});

    /// Declares name.lora_a and name.lora_b, where the weight is name.weight.
    void add_adapter(ParameterStore& parameters, const LowRankOptions& options);

    std::int64_t in_features() const { return weight.shape()[1]; }
    std::int64_t out_features() const { return weight.shape()[0]; }
    /// Whether backward reads x: for the weight's or an adapter's gradient.
    bool backward_needs_x() const { return adapter || !weight.is_frozen(); }
    /// Whether backward uses dy's column sums.
    bool bias_has_gradient() const { return bias.defined() && !bias.is_frozen(); }

    Tensor forward(const Context& ctx, const Normed& x /*[.., in]*/, Saved& saved) const;
    /// Returns the sum stream.x + dropout(y), for a stream without a branch. In inference, if nothing is
    /// dropped and the device can, the product adds stream.x itself; otherwise y becomes the branch, which
    /// the next norm adds.
    Residual forward_onto(const Context& ctx, const Residual& stream, const Tensor& x, Saved& saved) const;
    /// Returns f(y) + residual, computed in one kernel together with x's norm; f and the residual may be
    /// absent. Returns nothing if a backward pass may follow (Normed::inference), and if the device has no
    /// such kernel. A product with an adapter or a quantized weight has none.
    std::optional<Tensor> forward_in_one_kernel(const Context& ctx, const Normed& x,
                                                std::optional<Activation> activation = {},
                                                const Tensor& residual = {}) const;
    /// Returns dx [.., in].
    Tensor backward(const Context& ctx, const SummedGradient& dy /*[.., out]*/, const Saved& saved) const;
    /// Like backward, but does not compute dx: for a first layer, and when another operator computes dx.
    void accumulate_gradients(const Context& ctx, const SummedGradient& dy /*[.., out]*/,
                              const Saved& saved) const;
    /// Calls hooks.gradient_complete for all parameters whose gradients backward computed.
    void notify_complete(const BackwardHooks& hooks) const;

    /// The bias, or an undefined tensor.
    Tensor bias_value() const { return bias.defined() ? bias.value() : Tensor(); }

  private:
    void accumulate_own_gradients(const Context& ctx, const SummedGradient& gradient,
                                  const Saved& saved) const;
};

}  // namespace gradtile
