#include <gradtile/layers/transformer/key_value_cache.h>

#include <algorithm>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>

/// Forward passes with a cache, for each transformer layer. Nothing is saved for a backward pass.
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
    const auto [q, k] = queries_and_keys(
        ctx, packed, rope ? rope->angles_from(ctx, start, length, x.dtype()) : Rope::Angles(), discarded);
    copy(ctx, cache.k.slice(1, start, length), k);
    copy(ctx, cache.v.slice(1, start, length), heads_of(packed, heads + kv_heads, kv_heads));
    // The last query is aligned with the last key, so the rows see the same keys as without a cache.
    const Tensor o =
        attention::forward(ctx, q, cache.k.slice(1, 0, start + length), cache.v.slice(1, 0, start + length),
                           options_of_pass(ctx, {}), discarded.attention);
    return proj.forward(ctx, o.reshape({x.size(0), length, heads * head_dim}), discarded.proj);
}

namespace {

/// The texts [first, first + count) in a pass. They have neighbouring slots and equally many tokens, so that
/// one attention call computes all of them. Their tokens begin at index `begin` in the pass.
struct EqualTexts {
    PackedTexts::Text first;
    std::int64_t count = 0, begin = 0;

    /// These texts' rows in x [1, N, ..], as [count, length, ..].
    Tensor rows_of(const Tensor& x) const {
        return x.slice(1, begin, count * first.length).reshape({count, first.length, x.size(2), x.size(3)});
    }
    /// The cached keys or values, starting at token `from`: [count, length, Hkv, D].
    Tensor cached(const Tensor& kv, std::int64_t from, std::int64_t length) const {
        return kv.slice(0, first.slot, count).slice(1, from, length);
    }
};

std::vector<EqualTexts> equal_texts(const std::vector<PackedTexts::Text>& texts) {
    std::vector<EqualTexts> groups;
    std::int64_t begin = 0;
    for (const PackedTexts::Text& text : texts) {
        const bool joins = !groups.empty() && text.start == groups.back().first.start &&
                           text.length == groups.back().first.length &&
                           text.slot == groups.back().first.slot + groups.back().count;
        if (joins) {
            ++groups.back().count;
        } else {
            groups.push_back({text, 1, begin});
        }
        begin += text.length;
    }
    return groups;
}

}  // namespace

Tensor MultiHeadAttention::forward_with_cache(const Context& ctx, const Tensor& x, const PackedTexts& pass,
                                              const KeyValueCache::Layer& cache) const {
    Saved discarded;
    const Tensor packed = qkv.forward(ctx, x, discarded.qkv);
    std::int64_t end = 0;
    for (const PackedTexts::Text& text : pass.texts) end = std::max(end, text.start + text.length);
    const auto [q, k] = queries_and_keys(
        ctx, packed, rope ? rope->angles_at(ctx, pass.positions, x.dtype(), end) : Rope::Angles(), discarded);
    const Tensor v = heads_of(packed, heads + kv_heads, kv_heads);
    const Tensor o = empty(ctx, {1, x.size(1), heads, head_dim}, x.dtype());
    const attention::Options pass_options = options_of_pass(ctx, {});
    for (const EqualTexts& texts : equal_texts(pass.texts)) {
        const auto& [slot, start, length] = texts.first;
        copy(ctx, texts.cached(cache.k, start, length), texts.rows_of(k));
        copy(ctx, texts.cached(cache.v, start, length), texts.rows_of(v));
        attention::Saved unused;
        attention::forward(ctx, texts.rows_of(q), texts.cached(cache.k, 0, start + length),
                           texts.cached(cache.v, 0, start + length), pass_options, unused, texts.rows_of(o));
    }
    return proj.forward(ctx, o.reshape({1, x.size(1), heads * head_dim}), discarded.proj);
}

/// `positions` gives the token positions: one start for all texts, or PackedTexts.
template <class Positions>
Residual TransformerBlock::through_cache(const Context& ctx, Residual& stream, const Positions& positions,
                                         const KeyValueCache::Layer& cache) const {
    Activations discarded;
    const Tensor attended =
        attn.forward_with_cache(ctx, norm_1.forward(ctx, stream, discarded.norm_1), positions, cache);
    Residual middle{stream.x, attended};
    const Tensor branch = mlp.forward(ctx, norm_2.forward(ctx, middle, discarded.norm_2), discarded.mlp);
    return {middle.x, branch};
}

Residual TransformerBlock::forward_with_cache(const Context& ctx, Residual stream, std::int64_t start,
                                              const KeyValueCache::Layer& cache) const {
    return through_cache(ctx, stream, start, cache);
}

Residual TransformerBlock::forward_with_cache(const Context& ctx, Residual stream, const PackedTexts& pass,
                                              const KeyValueCache::Layer& cache) const {
    return through_cache(ctx, stream, pass, cache);
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

PackedTexts packed_texts(const Context& ctx, std::span<const TextToRead> texts) {
    PackedTexts pass;
    std::vector<std::int32_t> tokens, positions;
    for (const TextToRead& text : texts) {
        pass.texts.push_back({text.slot, text.start, std::ssize(text.tokens)});
        tokens.insert(tokens.end(), text.tokens.begin(), text.tokens.end());
        for (std::int64_t i = 0; i < std::ssize(text.tokens); ++i)
            positions.push_back(static_cast<std::int32_t>(text.start + i));
    }
    pass.tokens = from_host(ctx, tokens, {1, std::ssize(tokens)});
    pass.positions = from_host(ctx, positions, {1, std::ssize(positions)});
    return pass;
}

namespace {

/// Throws Error unless every text's tokens fit its slot in the cache.
void check_packed_texts(const PackedTexts& pass, const KeyValueCache& cache, std::int64_t context) {
    const std::int64_t slots = cache.layers.front().k.size(0);
    std::int64_t tokens = 0, next_slot = 0;
    for (const auto& [slot, start, length] : pass.texts) {
        check(slot >= next_slot && slot < slots, "transformer: a text in slot ", slot,
              " of a cache; expected slots in increasing order, below ", slots);
        check(start >= 0 && length >= 1 && start + length <= context, "transformer: ", length,
              " tokens after ", start, " in the cache; the context is ", context);
        next_slot = slot + 1;
        tokens += length;
    }
    const Shape expected{1, tokens};
    for (const Tensor* x : {&pass.tokens, &pass.positions})
        check(tokens > 0 && x->defined() && x->dtype() == DType::i32 && x->shape() == expected,
              "transformer: packed texts of ", tokens, " tokens; expected at least one, and int32 ", expected,
              " for tokens and positions");
}

/// Each text's last row in x [1, N, C]: [texts, C].
Tensor last_rows(const Context& ctx, const Tensor& x, const std::vector<PackedTexts::Text>& texts) {
    const std::int64_t width = x.size(2);
    const Tensor all = x.reshape({x.size(1), width});
    if (std::ssize(texts) == all.size(0)) return all;
    const Tensor last = empty(ctx, {std::ssize(texts), width}, x.dtype());
    std::int64_t end = 0, row = 0;
    for (const PackedTexts::Text& text : texts) {
        end += text.length;
        copy(ctx, last.slice(0, row++, 1), all.slice(0, end - 1, 1));
    }
    return last;
}

}  // namespace

Tensor Transformer::logits(const Context& ctx, const PackedTexts& pass, KeyValueCache& cache) const {
    check_packed_texts(pass, cache, config.context);
    Saved discarded;
    Tensor x = wte.forward(ctx, pass.tokens, discarded.wte);
    if (wpe) x = wpe->forward_at(ctx, x, pass.positions, discarded.wpe);
    Residual stream{x};
    for (std::size_t i = 0; i < blocks.size(); ++i)
        stream = blocks[i].forward_with_cache(ctx, stream, pass, cache.layers[i]);
    return head.logits(ctx,
                       norm_f.forward(ctx, last_rows(ctx, stream.sum(ctx), pass.texts), discarded.norm_f));
}

}  // namespace gradtile
