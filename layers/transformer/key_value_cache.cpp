#include <gradtile/layers/transformer/key_value_cache.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>

/// The forward pass of each part of a transformer with a cache. Nothing is saved for a backward pass.
namespace gradtile {

KeyValueCache::KeyValueCache(const Context& ctx, const ModelConfig& config, DType dtype, std::int64_t batch) {
    const Shape shape{batch, config.context, config.key_value_heads(), config.head_dim()};
    for (std::int64_t layer = 0; layer < config.layers; ++layer)
        layers.push_back({empty(ctx, shape, dtype), empty(ctx, shape, dtype)});
}

Tensor MultiHeadAttention::forward_with_cache(const Context& ctx, const Tensor& x, std::int64_t start,
                                              const KeyValueCache::Layer& cache) const {
    const std::int64_t length = x.size(1);
    Saved discarded;
    const Tensor packed = qkv.forward(ctx, x, discarded.qkv);
    const Tensor q = normalised(ctx, q_norm, heads_of(packed, 0, heads), discarded.q_norm, start);
    const Tensor k = normalised(ctx, k_norm, heads_of(packed, heads, kv_heads), discarded.k_norm, start);
    copy(ctx, cache.k.slice(1, start, length), k);
    copy(ctx, cache.v.slice(1, start, length), heads_of(packed, heads + kv_heads, kv_heads));
    // The last query is aligned with the last key, so the rows see the same keys as without a cache.
    const Tensor o =
        attention::forward(ctx, q, cache.k.slice(1, 0, start + length), cache.v.slice(1, 0, start + length),
                           options_of_pass(ctx, {}), discarded.attention);
    return proj.forward(ctx, o.reshape({x.size(0), length, heads * head_dim}), discarded.proj);
}

Residual TransformerBlock::forward_with_cache(const Context& ctx, Residual stream, std::int64_t start,
                                              const KeyValueCache::Layer& cache) const {
    Activations discarded;
    const Tensor attended =
        attn.forward_with_cache(ctx, norm_1.forward(ctx, stream, discarded.norm_1), start, cache);
    Residual middle{stream.x, attended};
    const Tensor branch = mlp.forward(ctx, norm_2.forward(ctx, middle, discarded.norm_2), discarded.mlp);
    return {middle.x, branch};
}

Tensor Transformer::logits(const Context& ctx, const Tensor& tokens, KeyValueCache& cache) const {
    check(tokens.rank() == 2 && tokens.dtype() == DType::i32 && tokens.size(1) >= 1,
          "transformer: logits after ", tokens, "; expected [B, T] int32 with at least one token");
    check(cache.length + tokens.size(1) <= config.context, "transformer: ", tokens.size(1), " tokens after ",
          cache.length, " in the cache; the context is ", config.context);
    Saved discarded;
    Tensor x = wte.forward(ctx, tokens, discarded.wte);
    if (wpe) x = wpe->forward(ctx, x, discarded.wpe, cache.length);
    Residual stream{x};
    for (std::size_t i = 0; i < blocks.size(); ++i)
        stream = blocks[i].forward_with_cache(ctx, stream, cache.length, cache.layers[i]);
    cache.length += tokens.size(1);
    const Tensor last = stream.sum(ctx).select(1, tokens.size(1) - 1);
    return head.logits(ctx, norm_f.forward(ctx, last, discarded.norm_f));
}

}  // namespace gradtile
