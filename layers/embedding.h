#pragma once
/// Token and learned position embeddings.
#include <memory>
#include <string>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// tokens [B,T] int32 (any shape, contiguous) -> weight rows [B,T,C].
struct Embedding {
    class TokenOrder;  ///< positions sorted by token, for a GPU's backward
    struct Saved {
        Tensor tokens;
        std::shared_ptr<const TokenOrder> order = {};  ///< of order_aside()
    };

    /// Registers name.weight [V,C], normal with the given standard deviation.
    Embedding(ParameterStore& parameters, const std::string& name, std::int64_t vocabulary,
              std::int64_t width, double init_std = 0.02);

    /// A token outside [0, V) throws Error naming position, token and V on the CPU. A GPU step waits for
    /// nothing, so there the token's row becomes NaN, and the loss with it; data files are checked against
    /// the vocabulary on the host when they are opened.
    Tensor forward(const Context& ctx, const Tensor& tokens, Saved& saved) const;
    /// A GPU needs the positions sorted by token for backward, which depends on the tokens alone: after
    /// forward, this starts it beside what ctx's stream gets next. Backward does it itself otherwise.
    void order_aside(const Context& ctx, Saved& saved) const;
    /// Adds to weight's gradient: the rows of a token are added in order of position, so the sum is the
    /// same on every run and for every thread count. Tokens have no gradient.
    void backward(const Context& ctx, const Tensor& dy /*[B,T,C]*/, const Saved& saved) const;

    Parameter weight;
};

/// x [B,T,C] + weight[start .. start+T), weight [T_max,C]: learned positions (GPT-2).
struct PositionEmbedding {
    struct Saved {
        std::int64_t start = 0;
    };

    /// Registers name.weight [T_max,C], normal with the given standard deviation.
    PositionEmbedding(ParameterStore& parameters, const std::string& name, std::int64_t max_positions,
                      std::int64_t width, double init_std = 0.02);

    /// start is the position of x's first token: not 0 when sampling goes on behind a cache. Throws Error
    /// when start + T exceeds T_max.
    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved, std::int64_t start = 0) const;
    /// Adds to weight's gradient, summing over samples in order; returns dx, which is dy itself.
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;

    Parameter weight;
};

}  // namespace gradtile
