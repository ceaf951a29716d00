#include <gradtile/layers/transformer/internal/predecessors.h>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

Tensor previous_in(const Context& ctx, const Tensor& x, const TrainingPass& pass, const Tensor&,
                   FirstToken first) {
    check(!pass.documents || pass.previous.place.defined(),
          "previous_token: a pass with documents has no predecessors; expected PreviousTokens(documents)");
    return previous_rows(ctx, x, pass.previous, first);
}

Tensor previous_in(const Context& ctx, const Tensor& x, const CachedPass& pass, const Tensor& cached,
                   FirstToken first) {
    const Tensor y = empty(ctx, x.shape(), x.dtype());
    for (const EqualTexts& texts : pass.texts) {
        const auto& [slot, start, length] = texts.first;
        const Tensor rows = texts.rows_of(x);
        if (start == 0) {
            const Tensor none = texts.cached(cached, 0, 1);
            first == FirstToken::zero ? fill(ctx, none, 0.0) : copy(ctx, none, rows.slice(1, 0, 1));
        }
        copy(ctx, texts.cached(cached, start + 1, length), rows);
        copy(ctx, texts.rows_of(y), texts.cached(cached, start, length));
    }
    return y;
}

Tensor previous_in(const Context& ctx, const Tensor& x, const StepPass& pass, const Tensor& cached,
                   FirstToken first) {
    return previous_rows_of_step(ctx, x, cached, pass.positions, pass.slots, first);
}

}  // namespace

Tensor previous_rows(const Context& ctx, const Tensor& x, const Pass& pass, const Tensor& cached,
                     FirstToken first) {
    return std::visit([&](const auto& kind) { return previous_in(ctx, x, kind, cached, first); }, pass);
}

PreviousTokens previous_tokens(const Context& ctx, const ModelConfig& config, const Documents& documents) {
    return config.smear || config.key_offset ? PreviousTokens(ctx, documents) : PreviousTokens();
}

void offset_keys(const Context& ctx, const Tensor& k, const KeyOffset& offset, const Pass& pass) {
    const KeyValueCache* const cache = cache_of(pass);
    for (const auto& [begin, count] : offset.columns) {
        const Tensor columns = k.slice(3, begin, count);
        const auto layer = static_cast<std::size_t>(offset.layer);
        const Tensor cached = cache == nullptr ? Tensor() : cache->layers[layer].k.slice(3, begin, count);
        copy(ctx, columns, previous_rows(ctx, columns, pass, cached, FirstToken::itself));
    }
}

void offset_keys_backward(const Context& ctx, const Tensor& dk, const KeyOffset& offset,
                          const TrainingPass& pass) {
    for (const auto& [begin, count] : offset.columns) {
        const Tensor columns = dk.slice(3, begin, count);
        copy(ctx, columns, previous_rows_backward(ctx, columns, pass.previous, FirstToken::itself));
    }
}

}  // namespace gradtile
