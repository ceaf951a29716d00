#pragma once
/// Layers whose weights are factors: one for each term of a sum, or one for each head of a token.
#include <span>
#include <string>
#include <vector>

#include <gradtile/layers/embedding.h>
#include <gradtile/layers/linear.h>

namespace gradtile {

/// y = sum_k w_k x_k for 1 to 3 tensors x_k with the same shape and dtype, all contiguous. Each factor w_k is
/// a parameter [1].
///   dx_k = w_k dy,  dw_k += sum over all elements of dy x_k.
/// Sums, and the factors' gradients, are float32 (float64 for float64 values).
struct WeightedSum {
    static constexpr std::size_t max_terms = 3;
    struct Term {
        const char* name;
        double first_factor = 1.0;
    };
    struct Saved {
        std::vector<Tensor> terms;
    };
    std::vector<Parameter> factors;  ///< one per term

    /// Declares name.TERM for each term, with its first value.
    WeightedSum(ParameterStore& parameters, const std::string& name, std::span<const Term> terms);

    /// Keeps the terms in `saved`, and copies nothing.
    Tensor forward(const Context& ctx, const std::vector<Tensor>& terms, Saved& saved) const;
    /// Replaces dy by the first term's gradient, and returns it. others[k - 1] receives the gradient of term
    /// k: a defined tensor is added to, an undefined one becomes a new tensor.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved, std::span<Tensor> others) const;
};

/// The columns of a layer's input that its gates read.
inline constexpr std::int64_t gate_columns = 16;

/// heads * scale * sigmoid(W x'), where x' are the first gate_columns columns of x [B,T,C] and W [H, columns]
/// starts at zero: every gate starts at scale / 2. The heads are [B,T,H,D] with a contiguous last axis.
///   with s = sigmoid(W x') and g the gradient of the result:
///   d_heads = scale s g,  d(W x') = scale s (1 - s) sum over D of g heads.
/// The records of modded-nanogpt read 12 columns; 16 keep rows on 16-byte boundaries.
///
/// Parameter: name.weight [H, columns].
struct HeadGate {
    struct Saved {
        Linear::Saved linear;  ///< x', a copy, so that x can be freed
        Tensor logits;         ///< [B,T,H]
    };
    Linear linear;
    double scale;

    HeadGate(ParameterStore& parameters, const std::string& name, std::int64_t width, std::int64_t heads,
             double gate_scale);

    /// Returns the gated heads, contiguous.
    Tensor forward(const Context& ctx, const Tensor& x, const Tensor& heads, Saved& saved) const;
    /// Adds the gated heads to `sum` [B,T,H,D].
    void forward_add(const Context& ctx, const Tensor& sum, const Tensor& x, const Tensor& heads,
                     Saved& saved) const;
    /// Returns the result of forward() again, with the same bits.
    Tensor recompute(const Context& ctx, const Tensor& heads, const Saved& saved) const;
    /// Writes the heads' gradient to d_heads, which may be dy itself, and returns that of W x' [B,T,H].
    Tensor backward_heads(const Context& ctx, const Tensor& d_heads, const Tensor& dy, const Tensor& heads,
                          const Saved& saved) const;
    /// Backward of product(gated heads), where dy is the gradient of the product. Returns the heads' gradient
    /// [B,T,H*D], and in d_logits that of W x'. If the product's x was dropped, computes it again.
    Tensor backward_through(const Context& ctx, const Linear& product, const SummedGradient& dy,
                            const Linear::Saved& of_product, const Tensor& heads, const Saved& saved,
                            Tensor& d_logits) const;
    /// Writes the weight's gradient, and adds x's gradient to the first columns of dx [B,T,C].
    void backward_add_x(const Context& ctx, const Tensor& dx, const Tensor& d_logits, const Saved& saved,
                        const BackwardHooks& hooks = {}) const;

  private:
    void compute_logits(const Context& ctx, const Tensor& x, Saved& saved) const;
};

/// Adds a gated embedding of each token to the values of attention: v += 2 sigmoid(gate(x)) * weight[token].
///
/// Parameters: name_embedding.weight [V, H*D], name_gate.weight (HeadGate).
struct ValueEmbedding {
    struct Saved {
        HeadGate::Saved gate;
    };
    Embedding embedding;
    HeadGate gate;

    ValueEmbedding(ParameterStore& parameters, const std::string& name, std::int64_t vocabulary,
                   std::int64_t width, std::int64_t heads, std::int64_t head_dim, double init_std);

    /// Adds to v [B,T,H,D] in place; x is [B,T,C].
    void forward_add(const Context& ctx, const Tensor& v, const Tensor& x, const Embedding::Saved& tokens,
                     Saved& saved) const;
    /// Writes the embedding's gradient, looking the rows up again, and returns that of the gates' logits for
    /// gate.backward_add_x().
    Tensor backward_values(const Context& ctx, const Tensor& dv, const Embedding::Saved& tokens,
                           const Saved& saved, const BackwardHooks& hooks = {}) const;

  private:
    Tensor rows_of(const Context& ctx, const Shape& heads, const Embedding::Saved& tokens) const;
};

}  // namespace gradtile
