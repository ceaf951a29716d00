#include <gradtile/layers/transformer/transformer_block.h>

namespace gradtile {
TransformerBlock::TransformerBlock(ParameterStore& parameters, const std::string& name,
                                   const ModelConfig& config, std::int64_t layer,
                                   const TrainingOptions& training)
    : norm_1(parameters, name + "." + norm_name(config.norm, "1"), config),
      attn(parameters, name + ".attn", config, layer, training),
      norm_2(parameters, name + "." + norm_name(config.norm, "2"), config),
      mlp(parameters, name + ".mlp", config, training),
      dropout{training.dropout},
      recompute(training.recompute),
      last_parameter(parameters.parameters().back()) {}

/// Returns the second norm's input: the residual stream and, as the branch, attention's output, or their sum.
/// Replaces `stream` by its sum.
Residual TransformerBlock::forward_attention(const Context& ctx, Residual& stream, const Pass& pass,
                                             Activations& saved) const {
    const Normed x = norm_1.forward(ctx, stream, saved.norm_1);
    saved.attn_dropout.key = dropout_key(pass, attn.layer + 1).at(0);
    return attn.forward_onto(ctx, stream.before_branch(dropout, saved.attn_dropout.key), x, pass, saved.attn);
}

Residual TransformerBlock::forward_layers(const Context& ctx, Residual& stream, const Pass& pass,
                                          Activations& saved) const {
    Residual middle = forward_attention(ctx, stream, pass, saved);
    const Normed x = norm_2.forward(ctx, middle, saved.norm_2);
    saved.mlp_dropout.key = dropout_key(pass, attn.layer + 1).at(1);
    return mlp.forward_onto(ctx, middle.before_branch(dropout, saved.mlp_dropout.key), x, saved.mlp);
}

/// Frees the saved values that backward recomputes.
void TransformerBlock::drop_recomputable(Activations& kept) const {
    kept.attn.qkv.x = {};
    if (attn.q_norm) kept.attn.attention.q = kept.attn.attention.k = {};
    kept.mlp.up.x = {};
    kept.mlp.down.x = {};
}

TransformerBlock::Activations TransformerBlock::recompute_activations(const Context& ctx,
                                                                      const Saved& inputs) const {
    Activations saved;
    Residual stream{inputs.input};
    Residual middle = forward_attention(ctx, stream, inputs.pass, saved);
    mlp.forward_hidden(ctx, norm_2.forward(ctx, middle, saved.norm_2), saved.mlp);
    saved.mlp_dropout.key = inputs.pass.key_at(attn.layer + 1).at(1);
    return saved;
}

Residual TransformerBlock::forward(const Context& ctx, Residual stream, const Pass& pass,
                                   Saved& saved) const {
    Activations all;
    Residual out = forward_layers(ctx, stream, pass, all);
    const auto* const training = std::get_if<TrainingPass>(&pass);
    if (training == nullptr) return out;
    switch (recompute) {
        case Recompute::none:
            saved.activations = std::move(all);
            return out;
        case Recompute::activations:
            drop_recomputable(all);
            saved.activations = std::move(all);
            return out;
        case Recompute::block:
            saved.input = stream.x;
            saved.pass = *training;
            return out;
    }
    throw Error("transformer_block: unknown recompute level");
}

SummedGradient TransformerBlock::backward(const Context& ctx, const SummedGradient& dy, const Saved& saved,
                                          const BackwardHooks& hooks) const {
    check(saved.activations || saved.input.defined(),
          "transformer_block: backward requires the saved values of a forward pass");
    Activations kept = saved.activations ? *saved.activations : recompute_activations(ctx, saved);

    const Tensor& stream = dy.dy;
    // dx's column sums are the gradient of the last bias in the branch below, unless dropout changes dx
    // first.
    const bool has_use = attn.proj.bias_has_gradient() && !dropout.drops(kept.attn_dropout.key);
    const ColumnSums sums = has_use ? ColumnSums::compute : ColumnSums::skip;
    SummedGradient middle;
    {
        if (!kept.mlp.up.x.defined() && mlp.up.backward_needs_x())
            kept.mlp.up.x = norm_2.recompute_output(ctx, kept.norm_2);
        const SummedGradient d_branch = dropout.backward(ctx, dy, kept.mlp_dropout);
        middle = norm_2.backward_add(ctx, mlp.backward(ctx, d_branch, kept.mlp, hooks), kept.norm_2, stream,
                                     sums, hooks);
    }
    kept.mlp = {};  // frees recomputed values
    if (!kept.attn.qkv.x.defined() && attn.qkv.backward_needs_x())
        kept.attn.qkv.x = norm_1.recompute_output(ctx, kept.norm_1);
    const SummedGradient d_branch = dropout.backward(ctx, middle, kept.attn_dropout);
    return norm_1.backward_add(ctx, attn.backward(ctx, d_branch, kept.attn, hooks), kept.norm_1, stream, sums,
                               hooks);
}

}  // namespace gradtile
