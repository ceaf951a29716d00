#pragma once
/// Token and learned position embeddings.
#include <memory>
#include <string>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// tokens [B,T] int32 (any shape, contiguous) -> weight rows [B,T,C].
struct Embedding {
    class TokenOrder;  ///< positions sorted by token, for backward on a GPU
    struct Saved {
        Tensor tokens;
        std::shared_ptr<const TokenOrder> order = {};  ///< the result of start_token_sort()
    };

    /// Registers name.weight [V,C], normal with the given standard deviation.
    Embedding(ParameterStore& parameters, const std::string& name, std::int64_t vocabulary,
              std::int64_t width, double init_std = 0.02);

    /// On the CPU, a token outside [0, V) throws Error with position, token and V. A GPU step does not wait
    /// for the device, so there such a token gets a NaN row, which makes the loss NaN; the host checks data
    /// files against the vocabulary when it opens them.
    Tensor forward(const Context& ctx, const Tensor& tokens, Saved& saved) const;
    /// Starts sorting token positions on the side stream. Call after forward. On a GPU, backward needs the
    /// sorted positions, which depend on the tokens only; without this call, backward sorts them itself.
    void start_token_sort(const Context& ctx, Saved& saved) const;
    /// Adds to the weight's gradient. The rows of dy that belong to a token are added in position order, so
    /// the sum is the same in every run and for any number of threads. Tokens have no gradient.
    void backward(const Context& ctx, const Tensor& dy /*[B,T,C]*/, const Saved& saved) const;

    Parameter weight;
};

/// Learned positions (GPT-2): y = x [B,T,C] + weight[start .. start+T), with weight [T_max,C].
struct PositionEmbedding {
    struct Saved {
        std::int64_t start = -1;  ///< -1: no forward pass, or forward_at()
        Tensor positions = {};    ///< the positions that forward_at() was called with
    };

    /// Registers name.weight [T_max,C], normal with the given standard deviation.
    PositionEmbedding(ParameterStore& parameters, const std::string& name, std::int64_t max_positions,
                      std::int64_t width, double init_std = 0.02);

    /// `start` is the position of x's first token. Throws Error when start + T exceeds T_max.
    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved, std::int64_t start = 0) const;
    /// Adds weight[positions[b,t]] to x[b,t]; positions int32 [B,T], contiguous. On the CPU, a position
    /// outside [0, T_max) throws Error; on a GPU its row becomes NaN.
    Tensor forward_at(const Context& ctx, const Tensor& x, const Tensor& positions, Saved& saved) const;
    /// Adds the sum over samples, in their order, to the weight's gradient. Returns dx, which is dy itself.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;

    Parameter weight;
};

}  // namespace gradtile
