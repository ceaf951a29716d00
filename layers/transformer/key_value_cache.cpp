#include <gradtile/layers/transformer/key_value_cache.h>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {

KeyValueCache::KeyValueCache(const Context& ctx, const ModelConfig& config, DType dtype, std::int64_t batch,
                             std::int64_t tokens)
    : capacity(tokens < 0 ? config.context : tokens) {
    check(capacity >= 1 && capacity <= config.context, "key/value cache: ", capacity,
          " tokens; expected 1 to the context, ", config.context);
    const Shape shape{batch, capacity + (config.key_offset ? 1 : 0), config.key_value_heads(),
                      config.head_dim()};
    for (std::int64_t layer = 0; layer < config.layers; ++layer)
        layers.push_back({empty(ctx, shape, dtype), empty(ctx, shape, dtype)});
}

void KeyValueCache::copy_from(const Context& ctx, const KeyValueCache& shorter) const {
    const auto copy_tokens = [&](const Tensor& to, const Tensor& from) {
        copy(ctx, to.slice(1, 0, from.size(1)), from);
    };
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        copy_tokens(layers[layer].k, shorter.layers[layer].k);
        copy_tokens(layers[layer].v, shorter.layers[layer].v);
    }
}

void KeyValueCache::check_fits(const PackedTexts& pass) const {
    const std::int64_t slots = layers.front().k.size(0);
    std::int64_t tokens = 0, next_slot = 0;
    for (const auto& [slot, start, length] : pass.texts) {
        check(slot >= next_slot && slot < slots, "transformer: a text in slot ", slot,
              " of a cache; expected slots in increasing order, below ", slots);
        check(start >= 0 && length >= 1 && start + length <= capacity, "transformer: ", length,
              " tokens after ", start, " in the cache; it holds ", capacity);
        next_slot = slot + 1;
        tokens += length;
    }
    const Shape expected{1, tokens};
    for (const Tensor* x : {&pass.tokens, &pass.positions})
        check(tokens > 0 && x->defined() && x->dtype() == DType::i32 && x->shape() == expected,
              "transformer: packed texts of ", tokens, " tokens; expected at least one, and int32 ", expected,
              " for tokens and positions");
}

double KeyValueCache::bytes_of_text(const ModelConfig& config, DType dtype, std::int64_t tokens) {
    const std::int64_t rows = 2 * config.layers * (tokens + (config.key_offset ? 1 : 0));
    const std::int64_t elements = rows * config.key_value_heads() * config.head_dim();
    return static_cast<double>(elements) * static_cast<double>(size_of(dtype));
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

Tensor EqualTexts::rows_of(const Tensor& x) const {
    if (count == 1 && first.length == x.size(1)) return x;  // on a CPU, views of a token take measurable time
    return x.slice(1, begin, count * first.length).reshape({count, first.length, x.size(2), x.size(3)});
}

Tensor EqualTexts::cached(const Tensor& kv, std::int64_t from, std::int64_t length) const {
    return (count == kv.size(0) ? kv : kv.slice(0, first.slot, count)).slice(1, from, length);
}

std::vector<EqualTexts> equal_texts(std::span<const PackedTexts::Text> texts) {
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

}  // namespace gradtile
