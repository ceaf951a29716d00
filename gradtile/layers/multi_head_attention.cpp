#include <gradtile/layers/multi_head_attention.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/initialization.h>

namespace gradtile {

MultiHeadAttention::MultiHeadAttention(ParameterStore& parameters, const std::string& name,
                                       const ModelConfig& config)
    : heads(config.heads),
      kv_heads(config.key_value_heads()),
      head_dim(config.head_dim()),
      options{.causal = true, .deterministic = config.deterministic},
      qkv(parameters, name + ".qkv", config.width, (heads + 2 * kv_heads) * head_dim,
          {.bias = config.bias, .init = weight_init()}),
      proj(parameters, name + ".proj", heads * head_dim, config.width,
           {.bias = config.bias, .init = residual_init(config)}) {
    if (config.qk_norm) {
        q_norm.emplace(parameters, name + ".q_norm", head_dim, config.norm_epsilon);
        k_norm.emplace(parameters, name + ".k_norm", head_dim, config.norm_epsilon);
    }
    if (config.positions == Positions::rope) rope.emplace(head_dim, config.context, config.rope_base);
}

/// Heads [first, first + count) of packed [B,T,(Hq+2Hkv)*D] as a view [B,T,count,D].
Tensor MultiHeadAttention::heads_of(const Tensor& packed, std::int64_t first, std::int64_t count) const {
    return packed.slice(-1, first * head_dim, count * head_dim)
        .reshape({packed.size(0), packed.size(1), count, head_dim});
}

Tensor MultiHeadAttention::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    check(x.rank() == 3, "multi_head_attention: x is ", x, "; expected [B, T, ", qkv.in_features(), "]");
    const Tensor packed = qkv.forward(ctx, x, saved.qkv);
    Tensor q = heads_of(packed, 0, heads);
    Tensor k = heads_of(packed, heads, kv_heads);
    const Tensor v = heads_of(packed, heads + kv_heads, kv_heads);
    if (q_norm) {
        q = q_norm->forward(ctx, q, saved.q_norm);
        k = k_norm->forward(ctx, k, saved.k_norm);
    }
    if (rope) {
        rope->forward(ctx, q);
        rope->forward(ctx, k);
    }
    const Tensor o = attention::forward(ctx, q, k, v, options, saved.attention);
    return proj.forward(ctx, o.reshape({x.size(0), x.size(1), heads * head_dim}), saved.proj);
}

Tensor MultiHeadAttention::backward(const Context& ctx, const Tensor& dy, const Saved& saved,
                                    const GradientReady& ready) const {
    Tensor d_o = proj.backward(ctx, dy, saved.proj);
    announce(ready, proj.weight, proj.bias);

    const Tensor d_packed =
        empty(ctx, {dy.size(0), dy.size(1), (heads + 2 * kv_heads) * head_dim}, dy.dtype());
    const Tensor dq = heads_of(d_packed, 0, heads);
    const Tensor dk = heads_of(d_packed, heads, kv_heads);
    const Tensor dv = heads_of(d_packed, heads + kv_heads, kv_heads);
    attention::backward(ctx, d_o.reshape(saved.attention.o.shape()), options, saved.attention,
                        {.q = dq, .k = dk, .v = dv});
    d_o = {};
    if (rope) {
        rope->backward(ctx, dq);
        rope->backward(ctx, dk);
    }
    if (q_norm) {
        copy(ctx, dq, q_norm->backward(ctx, dq, saved.q_norm));
        copy(ctx, dk, k_norm->backward(ctx, dk, saved.k_norm));
        announce(ready, q_norm->weight, k_norm->weight);
    }
    Tensor dx = qkv.backward(ctx, d_packed, saved.qkv);
    announce(ready, qkv.weight, qkv.bias);
    return dx;
}

}  // namespace gradtile
