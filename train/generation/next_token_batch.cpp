#include <gradtile/train/generation/next_token_batch.h>

#include <algorithm>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

/// The most tokens that a pass reads. Every text fits, because a window has at most `context` tokens.
std::int64_t tokens_of_pass(std::int64_t context, std::int64_t places) {
    return std::max(context, places);
}

/// Returns a context with memory for the activations of any pass (generation_context()). The caches are not
/// part of it, because twice their size would be much.
Context context_for(const LanguageModel& model, std::int64_t places) {
    const Transformer& transformer = model.transformer;
    const std::int64_t context = transformer.config.context;
    return generation_context(model, [&](const Context& dry) {
        const Context elsewhere = dry.plan(Arena::for_planning(dry.device()));
        KeyValueCache cache(elsewhere, transformer.config, model.parameters.dtype(), places);
        // The longest pass: a whole window, and one token of each other text as far as there is room.
        PackedTexts pass{
            .texts = {{.place = 0, .start = 0, .length = context}}, .tokens = {}, .positions = {}};
        std::int64_t tokens = context;
        for (std::int64_t place = 1; place < places && tokens < tokens_of_pass(context, places); ++place) {
            pass.texts.push_back({.place = place, .start = context - 1, .length = 1});
            ++tokens;
        }
        pass.tokens = pass.positions = empty(dry, {1, tokens}, DType::i32);
        transformer.logits(dry, pass, cache);
    });
}

}  // namespace

NextTokenBatch::NextTokenBatch(const LanguageModel& model, std::int64_t places)
    : model_(model),
      context_(model.transformer.config.context),
      ctx_(context_for(model, places)),
      cache_(model.ctx, model.transformer.config, model.parameters.dtype(), places),
      places_(static_cast<std::size_t>(places), Place(context_)) {}

std::size_t NextTokenBatch::bytes_of_place(const LanguageModel& model) {
    const ModelConfig& config = model.transformer.config;
    return static_cast<std::size_t>(2 * config.layers * config.context * config.key_value_heads() *
                                    config.head_dim()) *
           size_of(model.parameters.dtype());
}

/// The tokens that the place's cache lacks: the whole window when its beginning has moved.
TextToRead NextTokenBatch::unread_part(const Text& text) {
    Place& place = places_[static_cast<std::size_t>(text.place)];
    const std::int64_t begin = place.window.begin_of(std::ssize(text.tokens));
    if (begin != place.begin) place.cached = 0;
    place.begin = begin;
    const auto window = text.tokens.subspan(static_cast<std::size_t>(begin));
    check(std::ssize(window) > place.cached, "next token: a text at place ", text.place,
          " has not grown since the last call");
    const TextToRead unread{text.place, place.cached, window.subspan(static_cast<std::size_t>(place.cached))};
    place.cached = std::ssize(window);
    return unread;
}

std::vector<std::vector<double>> NextTokenBatch::logits(std::span<const Text> texts) {
    std::vector<std::vector<double>> all;
    std::vector<TextToRead> pass;
    std::int64_t tokens = 0;
    const auto compute = [&] {
        if (pass.empty()) return;
        const std::vector<double> logits =
            to_host(ctx_, model_.transformer.logits(ctx_, packed_texts(ctx_, pass), cache_));
        const auto vocabulary = static_cast<std::size_t>(model_.transformer.config.vocabulary);
        for (std::size_t i = 0; i < pass.size(); ++i)
            all.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(i * vocabulary),
                             logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocabulary));
        pass.clear();
        tokens = 0;
    };
    for (const Text& text : texts) {
        const TextToRead unread = unread_part(text);
        if (tokens + std::ssize(unread.tokens) > tokens_of_pass(context_, std::ssize(places_))) compute();
        pass.push_back(unread);
        tokens += std::ssize(unread.tokens);
    }
    compute();
    return all;
}

}  // namespace gradtile
