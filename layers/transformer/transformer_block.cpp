#include <gradtile/layers/transformer/transformer_block.h>

namespace gradtile {
TransformerBlock::TransformerBlock(ParameterStore& parameters, const std::string& name,
                                   const ModelConfig& config, std::int64_t layer,
                                   const TrainingOptions& training)
    : norm_1(parameters, name + "." + norm_name(config.norm, "1"), config),
      attn(parameters, name + ".attn", config, layer, training),
      norm_2(parameters, name + "." + norm_name(config.norm, "2"), config),
      mlp(parameters, name + ".mlp", config),
      dropout{training.dropout},
      recompute(training.recompute),
      last_parameter(parameters.parameters().back()) {}

/// Returns the second norm's input as a sum that is not added yet: the residual stream and, as the branch,
/// attention's output.
Residual TransformerBlock::forward_attention(const Context& ctx, Residual& stream, const DropoutKey& key,
                                             Activations& saved, const Documents& documents) const {
    const Tensor branch =
        attn.forward(ctx, norm_1.forward(ctx, stream, saved.norm_1), saved.attn, key.at(2), documents);
    saved.attn_dropout.key = key.at(0);
    return {stream.x, branch, dropout, key.at(0)};
}

Residual TransformerBlock::forward_and_save(const Context& ctx, Residual& stream, const DropoutKey& key,
                                            Activations& saved, const Documents& documents) const {
    Residual middle = forward_attention(ctx, stream, key, saved, documents);
    const Tensor branch = mlp.forward(ctx, norm_2.forward(ctx, middle, saved.norm_2), saved.mlp);
    saved.mlp_dropout.key = key.at(1);
    return {middle.x, branch, dropout, key.at(1)};
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
    Residual middle = forward_attention(ctx, stream, inputs.dropout, saved, inputs.documents);
    mlp.forward_hidden(ctx, norm_2.forward(ctx, middle, saved.norm_2), saved.mlp);
    saved.mlp_dropout.key = inputs.dropout.at(1);
    return saved;
}

Residual TransformerBlock::forward(const Context& ctx, Residual stream, const DropoutKey& key, Saved& saved,
                                   const Documents& documents) const {
    switch (recompute) {
        case Recompute::none:
            return forward_and_save(ctx, stream, key, saved.activations.emplace(), documents);
        case Recompute::activations: {
            Residual out = forward_and_save(ctx, stream, key, saved.activations.emplace(), documents);
            drop_recomputable(*saved.activations);
            return out;
        }
        case Recompute::block: {
            Activations discarded;
            Residual out = forward_and_save(ctx, stream, key, discarded, documents);
            saved.input = stream.x;
            saved.dropout = key;
            saved.documents = documents;
            return out;
        }
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
