#include <gradtile/layers/transformer/multi_head_attention.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/initialization.h>

namespace gradtile {
namespace {

void add_gradient(const Context& ctx, const Parameter& parameter, const Tensor& contribution) {
    const GradientTarget target = parameter.begin_gradient_write();
    if (target.accumulates()) {
        axpy(ctx, target.grad, 1.0, contribution);
    } else {
        copy(ctx, target.grad, contribution);
    }
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(ParameterStore& parameters, const std::string& name,
                                       const ModelConfig& config, std::int64_t layer)
    : heads(config.heads),
      kv_heads(config.key_value_heads()),
      head_dim(config.head_dim()),
      options{.causal = true,
              .window = {.left = config.window_of(layer) - 1},  // -1 is unbounded
              .deterministic = config.deterministic,
              .softcap = config.softcap,
              .dropout_p = config.attention_dropout},
      qkv(parameters, name + ".qkv", block_matrices(config).qkv.in, block_matrices(config).qkv.out,
          {.bias = config.bias, .init = weight_init()}),
      proj(parameters, name + ".proj", block_matrices(config).proj.in, block_matrices(config).proj.out,
           {.bias = config.bias, .init = residual_init(config)}) {
    if (config.qk_norm) {
        q_norm.emplace(parameters, name + ".q_norm", head_dim, config.norm_epsilon);
        k_norm.emplace(parameters, name + ".k_norm", head_dim, config.norm_epsilon);
    }
    if (rotates_heads(config.positions)) rope.emplace(head_dim, config.context, config.rope_base);
    if (config.positions == Positions::alibi) alibi.emplace(heads);
    if (config.sinks) sinks = parameters.add(name + ".sinks", {heads}, Init::zeros());
}

attention::Options MultiHeadAttention::options_of_pass(const Context& ctx, const DropoutKey& key) const {
    attention::Options pass = options;
    pass.dropout_key = key;
    if (alibi) pass.alibi_slopes = alibi->on_device(ctx);
    if (sinks.defined())
        pass.sink =
            sinks.value().dtype() == DType::f32 ? sinks.value() : cast(ctx, sinks.value(), DType::f32);
    return pass;
}

/// A view [B,T,count,D] of the heads [first, first + count) of packed [B,T,(Hq+2Hkv)*D].
Tensor MultiHeadAttention::heads_of(const Tensor& packed, std::int64_t first, std::int64_t count) const {
    return packed.slice(-1, first * head_dim, count * head_dim)
        .reshape({packed.size(0), packed.size(1), count, head_dim});
}

namespace {

/// Returns x [B,T,H,D] in the shape that the operator expects. With packed documents this is [B T,H,D].
Tensor operand(const Documents& documents, const Tensor& x) {
    return documents ? x.reshape({x.size(0) * x.size(1), x.size(2), x.size(3)}) : x;
}
/// x [B,T,H,D] as [1,B T,H,D].
Tensor one_sequence(const Tensor& x) {
    return x.reshape({1, x.size(0) * x.size(1), x.size(2), x.size(3)});
}

}  // namespace

/// The angles of packed documents; undefined without documents or rotations.
Rope::Angles MultiHeadAttention::angles_of(const Context& ctx, const Documents& documents,
                                           DType dtype) const {
    return documents && rope ? rope->angles_at(ctx, documents.positions, dtype) : Rope::Angles();
}

/// The queries or keys for attention: normalised and rotated, if the config says so. `start` is the position
/// of the first token, unless `angles` are those of all tokens.
Tensor MultiHeadAttention::normalised(const Context& ctx, const std::optional<RMSNorm>& norm,
                                      const Tensor& projected, RMSNorm::Saved& saved, std::int64_t start,
                                      const Rope::Angles& angles) const {
    const Tensor x = norm ? norm->forward(ctx, projected, saved) : projected;
    if (angles.cosines.defined()) {
        rope->forward(ctx, one_sequence(x), angles);
    } else if (rope) {
        rope->forward(ctx, x, start);
    }
    return x;
}

attention::Saved MultiHeadAttention::operands_of(const Context& ctx, const Saved& saved) const {
    attention::Saved operands = saved.attention;
    if (operands.q.defined() && operands.k.defined()) return operands;
    RMSNorm::Saved same;
    const Documents& documents = saved.documents;
    const Rope::Angles angles = angles_of(ctx, documents, saved.q_norm.x.dtype());
    if (!operands.q.defined())
        operands.q = operand(documents, normalised(ctx, q_norm, saved.q_norm.x, same, 0, angles));
    if (!operands.k.defined())
        operands.k = operand(documents, normalised(ctx, k_norm, saved.k_norm.x, same, 0, angles));
    return operands;
}

Tensor MultiHeadAttention::forward(const Context& ctx, const Tensor& x, Saved& saved, const DropoutKey& key,
                                   const Documents& documents) const {
    check(x.rank() == 3, "multi_head_attention: x is ", x, "; expected [B, T, ", qkv.in_features(), "]");
    const Tensor packed = qkv.forward(ctx, x, saved.qkv);
    saved.documents = documents;
    Rope::Angles angles = angles_of(ctx, documents, x.dtype());
    const Tensor q = normalised(ctx, q_norm, heads_of(packed, 0, heads), saved.q_norm, 0, angles);
    const Tensor k = normalised(ctx, k_norm, heads_of(packed, heads, kv_heads), saved.k_norm, 0, angles);
    angles = {};
    const Tensor v = heads_of(packed, heads + kv_heads, kv_heads);
    saved.options = options_of_pass(ctx, key);
    // In a packed call, attention's dropout numbers the documents and not the windows.
    if (documents) saved.options.dropout_key.first_sample *= documents.of_window();
    saved.options.cumulative_q = saved.options.cumulative_k = documents.offsets;
    const Tensor o = attention::forward(ctx, operand(documents, q), operand(documents, k),
                                        operand(documents, v), saved.options, saved.attention);
    return proj.forward(ctx, o.reshape({x.size(0), x.size(1), heads * head_dim}), saved.proj);
}

Tensor MultiHeadAttention::backward(const Context& ctx, const SummedGradient& gradient, const Saved& saved,
                                    const BackwardHooks& hooks) const {
    const Tensor& dy = gradient.dy;
    Tensor d_o = proj.backward(ctx, gradient, saved.proj);
    proj.announce_gradients(hooks);

    const Tensor d_packed = empty(ctx, {dy.size(0), dy.size(1), qkv.out_features()}, dy.dtype());
    const Tensor dq = heads_of(d_packed, 0, heads);
    const Tensor dk = heads_of(d_packed, heads, kv_heads);
    const Tensor dv = heads_of(d_packed, heads + kv_heads, kv_heads);
    const bool trains_sinks = sinks.defined() && !sinks.is_frozen();
    const Tensor d_sink = trains_sinks ? empty(ctx, {heads}, DType::f32) : Tensor();
    announce_attention(hooks);
    const Documents& documents = saved.documents;
    attention::backward(ctx, d_o.reshape(saved.attention.o.shape()), saved.options, operands_of(ctx, saved),
                        {.q = operand(documents, dq),
                         .k = operand(documents, dk),
                         .v = operand(documents, dv),
                         .sink = d_sink});
    d_o = {};
    if (trains_sinks) {
        add_gradient(ctx, sinks, d_sink);
        announce(hooks, sinks);
    }
    if (rope && documents) {
        const Rope::Angles angles = angles_of(ctx, documents, dy.dtype());
        rope->backward(ctx, one_sequence(dq), angles);
        rope->backward(ctx, one_sequence(dk), angles);
    } else if (rope) {
        rope->backward(ctx, dq);
        rope->backward(ctx, dk);
    }
    if (q_norm) {
        copy(ctx, dq, q_norm->backward(ctx, dq, saved.q_norm));
        copy(ctx, dk, k_norm->backward(ctx, dk, saved.k_norm));
        announce(hooks, q_norm->weight, k_norm->weight);
    }
    Tensor dx = qkv.backward(ctx, d_packed, saved.qkv);
    qkv.announce_gradients(hooks);
    return dx;
}

}  // namespace gradtile
