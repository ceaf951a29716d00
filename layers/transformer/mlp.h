#pragma once
/// A transformer block's feed-forward layer.
#include <string>

#include <gradtile/layers/linear.h>
#include <gradtile/layers/pass_hooks.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

/// y = down(activation(up(x))), x and y [.., C].
///   plain activation (GPT-2): up [.., C] -> [.., hidden]; parameters name.fc.*, name.proj.*
///   gated activation (Llama): up [.., C] -> [.., 2*hidden], gate and up packed; name.gate_up.*, name.down.*
/// The last matrix starts with a standard deviation of 0.02 / sqrt(2 * layers), GPT-2's residual scaling, or
/// at zero with training.zero_init.
struct Mlp {
    struct Saved {
        Linear::Saved up;    // x [.., C]
        Tensor hidden;       // [.., hidden] or [.., 2*hidden], before the activation
        Linear::Saved down;  // the activation's output [.., hidden]; undefined: backward recomputes it if
                             // it needs it
    };
    Activation activation;
    Linear up, down;

    Mlp(ParameterStore& parameters, const std::string& name, const ModelConfig& config,
        const TrainingOptions& training = {});

    Tensor forward(const Context& ctx, const Normed& x, Saved& saved) const;
    /// Returns the stream's sum with dropout(y), see Linear::forward_onto().
    Residual forward_onto(const Context& ctx, const Residual& stream, const Normed& x, Saved& saved) const;
    /// Computes forward without its last product, and saves everything that backward needs.
    void forward_hidden(const Context& ctx, const Normed& x, Saved& saved) const;
    /// Returns dx.
    Tensor backward(const Context& ctx, const SummedGradient& dy, const Saved& saved,
                    const BackwardHooks& hooks = {}) const;

  private:
    Tensor activated(const Context& ctx, const Tensor& hidden) const;
};

}  // namespace gradtile
