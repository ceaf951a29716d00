#include <gradtile/layers/transformer/internal/key_offset.h>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

/// previous_rows() for columns x [B,T,H,D] of a pass's keys.
Tensor previous_in(const Context& ctx, const Tensor& x, const TrainingPass& pass, const Tensor&) {
    check(!pass.documents || pass.previous.place.defined(),
          "previous_token: a pass with documents has no predecessors; expected PreviousTokens(documents)");
    return previous_rows(ctx, x, pass.previous);
}

/// `cached` holds the columns of each text's token t in row t + 1, and receives those of x.
Tensor previous_in(const Context& ctx, const Tensor& x, const CachedPass& pass, const Tensor& cached) {
    const Tensor y = empty(ctx, x.shape(), x.dtype());
    for (const EqualTexts& texts : pass.texts) {
        const auto& [slot, start, length] = texts.first;
        const Tensor rows = texts.rows_of(x), previous = texts.rows_of(y);
        copy(ctx, previous.slice(1, 0, 1),
             start == 0 ? rows.slice(1, 0, 1) : pass.cache.read(ctx, cached, texts, start, 1));
        copy(ctx, previous.slice(1, 1, length - 1), rows.slice(1, 0, length - 1));
        pass.cache.write(ctx, cached, texts, start + 1, rows);
    }
    return y;
}

Tensor previous_in(const Context& ctx, const Tensor& x, const StepPass& pass, const Tensor& cached) {
    return previous_rows_of_step(ctx, x, cached, pass.positions, pass.slots, pass.cache.layer(0).table);
}

}  // namespace

PreviousTokens previous_tokens(const Context& ctx, const ModelConfig& config, const Documents& documents) {
    return config.key_offset ? PreviousTokens(ctx, documents) : PreviousTokens();
}

void offset_keys(const Context& ctx, const Tensor& k, const KeyOffset& offset, const Pass& pass) {
    const KeyValueCache* const cache = cache_of(pass);
    for (const auto& [begin, count] : offset.columns) {
        const Tensor columns = k.slice(3, begin, count);
        const Tensor cached =
            cache == nullptr ? Tensor() : cache->layer(offset.layer).k.slice(3, begin, count);
        const auto previous = [&](const auto& kind) { return previous_in(ctx, columns, kind, cached); };
        copy(ctx, columns, std::visit(previous, pass));
    }
}

void offset_keys_backward(const Context& ctx, const Tensor& dk, const KeyOffset& offset,
                          const TrainingPass& pass) {
    for (const auto& [begin, count] : offset.columns) {
        const Tensor columns = dk.slice(3, begin, count);
        copy(ctx, columns, previous_rows_backward(ctx, columns, pass.previous));
    }
}

}  // namespace gradtile
