#include <gradtile/layers/transformer/transformer_block.h>

#include <gradtile/layers/transformer/internal/stream_norm.h>

namespace gradtile {
namespace {

struct NormPlaces {
    bool inputs, outputs;
};
NormPlaces norm_places(BlockKind kind) {
    switch (kind) {
        case BlockKind::pre_norm:
        case BlockKind::parallel:
            return {.inputs = true, .outputs = false};
        case BlockKind::output_norm:
            return {.inputs = false, .outputs = true};
        case BlockKind::sandwich_norm:
            return {.inputs = true, .outputs = true};
    }
    throw Error("block: unknown kind");
}

std::optional<NormLayer> norm_if(bool exists, ParameterStore& parameters, const std::string& block,
                                 const char* suffix, const ModelConfig& config) {
    return exists ? std::optional(configured_norm(parameters, block + ".", suffix, config)) : std::nullopt;
}

}  // namespace

TransformerBlock::TransformerBlock(ParameterStore& parameters, const std::string& name,
                                   const ModelConfig& config, std::int64_t layer,
                                   const TrainingOptions& training)
    : kind(config.block),
      mix(parameters, name + ".mix", config),
      norm_1(norm_if(norm_places(kind).inputs, parameters, name, "1", config)),
      attn(parameters, name + ".attn", config, layer, training),
      norm_post_1(norm_if(norm_places(kind).outputs, parameters, name, "post_1", config)),
      norm_2(norm_if(norm_places(kind).inputs, parameters, name, "2", config)),
      mlp(parameters, name + ".mlp", config, training),
      norm_post_2(norm_if(norm_places(kind).outputs, parameters, name, "post_2", config)),
      dropout{training.dropout},
      recompute(training.recompute) {}

/// Returns the residual stream and, as the branch, attention's output, or their sum. Replaces `stream` by its
/// sum.
Residual TransformerBlock::forward_attention(const Context& ctx, Residual& stream, const Pass& pass,
                                             Activations& saved) const {
    const Normed x = normalize_stream(ctx, norm_1, stream, saved.norm_1);
    saved.attn_dropout.key = dropout_key(pass, attn.layer + 1).at(0);
    Residual middle = stream.before_branch(dropout, saved.attn_dropout.key);
    if (!norm_post_1) return attn.forward_onto(ctx, middle, x, pass, saved.attn);
    middle.branch = norm_post_1->forward(ctx, attn.forward(ctx, x, pass, saved.attn), saved.norm_post_1);
    return middle;
}

/// The MLP's input. Replaces `middle`, the stream after attention, by its sum. `stream`, the block's input,
/// has no branch.
Normed TransformerBlock::mlp_input(const Context& ctx, Residual& stream, Residual& middle,
                                   Activations& saved) const {
    if (kind != BlockKind::parallel) return normalize_stream(ctx, norm_2, middle, saved.norm_2);
    middle.x = middle.sum(ctx);
    middle.branch = {};
    return normalize_stream(ctx, norm_2, stream, saved.norm_2);
}

/// Frees the saved values that backward recomputes.
void TransformerBlock::drop_recomputable(Activations& kept) const {
    if (norm_1) kept.attn.qkv.x = {};
    if (attn.gate) kept.attn.proj.x = {};
    if (attn.qk_norm) kept.attn.attention.q = kept.attn.attention.k = {};
    if (norm_2) kept.mlp.up.x = {};
    kept.mlp.down.x = {};
}

TransformerBlock::Activations TransformerBlock::recompute_activations(const Context& ctx,
                                                                      const Saved& inputs) const {
    Activations saved;
    Residual stream{mix.exists() ? mix.recompute(ctx, inputs.mix) : inputs.input};
    Residual middle = forward_attention(ctx, stream, inputs.pass, saved);
    const Normed x = mlp_input(ctx, stream, middle, saved);
    if (norm_post_2) {
        norm_post_2->forward(ctx, mlp.forward(ctx, x, saved.mlp), saved.norm_post_2);
    } else {
        mlp.forward_hidden(ctx, x, saved.mlp);
    }
    saved.mlp_dropout.key = inputs.pass.key_at(attn.layer + 1).at(1);
    return saved;
}

Residual TransformerBlock::forward(const Context& ctx, Residual stream, const Pass& pass, Saved& saved,
                                   const Tensor& x0) const {
    Activations all;
    stream = mix.forward(ctx, stream, x0, saved.mix);
    Residual middle = forward_attention(ctx, stream, pass, all);
    const Normed x = mlp_input(ctx, stream, middle, all);
    all.mlp_dropout.key = dropout_key(pass, attn.layer + 1).at(1);
    Residual out = middle.before_branch(dropout, all.mlp_dropout.key);
    if (norm_post_2) {
        out.branch = norm_post_2->forward(ctx, mlp.forward(ctx, x, all.mlp), all.norm_post_2);
    } else {
        out = mlp.forward_onto(ctx, out, x, all.mlp);
    }
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
            if (!mix.exists()) saved.input = stream.x;
            saved.pass = *training;
            return out;
    }
    throw Error("transformer_block: unknown recompute level");
}

/// The gradient with respect to the MLP's input. Frees the MLP's saved values, some of which are recomputed.
Tensor TransformerBlock::backward_mlp(const Context& ctx, const SummedGradient& dy, Activations& kept,
                                      const BackwardHooks& hooks) const {
    if (!kept.mlp.up.x.defined() && mlp.up.backward_needs_x())
        kept.mlp.up.x = recompute_output(ctx, *norm_2, kept.norm_2);
    SummedGradient d_branch = dropout.backward(ctx, dy, kept.mlp_dropout);
    if (norm_post_2) d_branch = norm_post_2->backward(ctx, d_branch.dy, kept.norm_post_2, hooks);
    Tensor dx = mlp.backward(ctx, d_branch, kept.mlp, hooks);
    kept.mlp = {};
    return dx;
}

/// The gradient with respect to attention's input.
Tensor TransformerBlock::backward_attention(const Context& ctx, const SummedGradient& dy, Activations& kept,
                                            const BackwardHooks& hooks) const {
    if (!kept.attn.qkv.x.defined() && attn.qkv.backward_needs_x())
        kept.attn.qkv.x = recompute_output(ctx, *norm_1, kept.norm_1);
    SummedGradient d_branch = dropout.backward(ctx, dy, kept.attn_dropout);
    if (norm_post_1) d_branch = norm_post_1->backward(ctx, d_branch.dy, kept.norm_post_1, hooks);
    return attn.backward(ctx, d_branch, kept.attn, hooks);
}

SummedGradient TransformerBlock::backward(const Context& ctx, const SummedGradient& dy, const Saved& saved,
                                          const BackwardHooks& hooks, Tensor& d_x0) const {
    check(saved.activations || saved.input.defined() || !saved.mix.terms.empty(),
          "transformer_block: backward requires the saved values of a forward pass");
    Activations kept = saved.activations ? *saved.activations : recompute_activations(ctx, saved);
    return mix.backward(ctx, backward_layers(ctx, dy, kept, hooks), saved.mix, d_x0, hooks);
}

/// The gradient with respect to the first norm's input, in dy's memory. Frees the saved values.
SummedGradient TransformerBlock::backward_layers(const Context& ctx, const SummedGradient& dy,
                                                 Activations& kept, const BackwardHooks& hooks) const {
    const Tensor& stream = dy.dy;
    // dx's column sums are the gradient of the last bias in the branch below, unless dropout or a norm
    // changes dx first.
    const bool has_use =
        attn.proj.bias_has_gradient() && !norm_post_1 && !dropout.drops(kept.attn_dropout.key);
    const ColumnSums sums = has_use ? ColumnSums::compute : ColumnSums::skip;
    if (kind == BlockKind::parallel) {
        const Tensor d_mlp = backward_mlp(ctx, dy, kept, hooks);
        const Tensor d_attn = backward_attention(ctx, dy, kept, hooks);
        add_to_stream_gradient(ctx, norm_2, d_mlp, kept.norm_2, stream, ColumnSums::skip, hooks);
        return add_to_stream_gradient(ctx, norm_1, d_attn, kept.norm_1, stream, sums, hooks);
    }
    const SummedGradient middle = add_to_stream_gradient(ctx, norm_2, backward_mlp(ctx, dy, kept, hooks),
                                                         kept.norm_2, stream, sums, hooks);
    return add_to_stream_gradient(ctx, norm_1, backward_attention(ctx, middle, kept, hooks), kept.norm_1,
                                  stream, sums, hooks);
}

}  // namespace gradtile
