#include <gradtile/tools/generation/next_token_batch.h>

#include <algorithm>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

/// The most tokens that a pass reads. Every text fits, because a window has at most `context` tokens.
std::int64_t tokens_of_pass(std::int64_t context, std::int64_t slots) {
    return std::max(context, slots);
}

/// Returns a context with activation memory for any pass (generation_context()). The caches are allocated
/// elsewhere, because the context's arena is twice as large as needed.
Context context_for(const LanguageModel& model, std::int64_t slots) {
    const Transformer& transformer = model.transformer;
    const std::int64_t context = transformer.config.context;
    return generation_context(model, [&](const Context& dry) {
        const Context elsewhere = dry.plan(Arena::for_planning(dry.device()));
        KeyValueCache cache(elsewhere, transformer.config, model.parameters.dtype(), slots);
        // The longest pass: a whole window, and one token from each other text as far as there is room.
        PackedTexts pass{
            .texts = {{.slot = 0, .start = 0, .length = context}}, .tokens = {}, .positions = {}};
        std::int64_t tokens = context;
        for (std::int64_t slot = 1; slot < slots && tokens < tokens_of_pass(context, slots); ++slot) {
            pass.texts.push_back({.slot = slot, .start = context - 1, .length = 1});
            ++tokens;
        }
        pass.tokens = pass.positions = empty(dry, {1, tokens}, DType::i32);
        transformer.logits(dry, pass, cache);
        if (TokenStep::exists_for(model)) TokenStep::plan(dry, model, cache, slots);
    });
}

}  // namespace

NextTokenBatch::NextTokenBatch(const LanguageModel& model, std::int64_t slots)
    : model_(model),
      context_(model.transformer.config.context),
      ctx_(context_for(model, slots)),
      cache_(model.ctx, model.transformer.config, model.parameters.dtype(), slots),
      slots_(static_cast<std::size_t>(slots), Slot(context_)) {
    if (TokenStep::exists_for(model)) step_ = std::make_unique<TokenStep>(ctx_, model, cache_, slots);
}

std::size_t NextTokenBatch::bytes_of_slot(const LanguageModel& model) {
    const ModelConfig& config = model.transformer.config;
    return static_cast<std::size_t>(2 * config.layers * config.context * config.key_value_heads() *
                                    config.head_dim()) *
           size_of(model.parameters.dtype());
}

NextTokenBatch::Slot& NextTokenBatch::slot_at(std::int64_t slot) {
    check(slot >= 0 && slot < std::ssize(slots_), "next token: a text in slot ", slot, "; expected 0 to ",
          std::ssize(slots_) - 1);
    return slots_[static_cast<std::size_t>(slot)];
}

/// The tokens that the slot's cache lacks: the whole window when its beginning has moved.
TextToRead NextTokenBatch::unread_part(const Text& text) {
    Slot& slot = slot_at(text.slot);
    const std::int64_t begin = slot.window.begin_of(std::ssize(text.tokens));
    if (begin != slot.begin) slot.cached = 0;
    slot.begin = begin;
    const auto window = text.tokens.subspan(static_cast<std::size_t>(begin));
    check(std::ssize(window) > slot.cached, "next token: a text in slot ", text.slot,
          " has not grown since the last call");
    const TextToRead unread{text.slot, slot.cached, window.subspan(static_cast<std::size_t>(slot.cached))};
    slot.cached = std::ssize(window);
    return unread;
}

NextTokenBatch::Parts NextTokenBatch::parts_of(std::span<const Text> texts) {
    Parts parts;
    const std::int64_t limit = tokens_of_pass(context_, std::ssize(slots_));
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const TextToRead unread = unread_part(texts[i]);
        const auto length = std::ssize(unread.tokens);
        if (step_ && length == 1) {
            parts.step.push_back(
                {.slot = unread.slot, .position = unread.start, .token = unread.tokens.front()});
            parts.step_indices.push_back(i);
            continue;
        }
        if (parts.passes.empty() || parts.passes.back().tokens + length > limit) parts.passes.emplace_back();
        Parts::Pass& pass = parts.passes.back();
        pass.texts.push_back(unread);
        pass.text_indices.push_back(i);
        pass.tokens += length;
    }
    return parts;
}

std::vector<std::vector<double>> NextTokenBatch::logits_of(const Parts::Pass& pass) {
    const std::vector<double> logits =
        to_host(ctx_, model_.transformer.logits(ctx_, packed_texts(ctx_, pass.texts), cache_));
    const auto vocabulary = model_.transformer.config.vocabulary;
    std::vector<std::vector<double>> all;
    for (auto begin = logits.begin(); begin != logits.end(); begin += vocabulary)
        all.emplace_back(begin, begin + vocabulary);
    return all;
}

std::vector<std::vector<double>> NextTokenBatch::logits(std::span<const Text> texts) {
    const Parts parts = parts_of(texts);
    std::vector<std::vector<double>> all(texts.size());
    const auto put = [&](std::vector<std::vector<double>> some,
                         const std::vector<std::size_t>& text_indices) {
        for (std::size_t i = 0; i < some.size(); ++i) all[text_indices[i]] = std::move(some[i]);
    };
    for (const Parts::Pass& pass : parts.passes) put(logits_of(pass), pass.text_indices);
    if (!parts.step.empty()) put(step_->logits(parts.step), parts.step_indices);
    return all;
}

std::vector<std::int32_t> NextTokenBatch::most_likely(std::span<const Text> texts) {
    const Parts parts = parts_of(texts);
    std::vector<std::int32_t> all(texts.size());
    for (const Parts::Pass& pass : parts.passes) {
        const std::vector<std::vector<double>> logits = logits_of(pass);
        for (std::size_t i = 0; i < logits.size(); ++i)
            all[pass.text_indices[i]] = most_likely_token(logits[i]);
    }
    if (!parts.step.empty()) {
        const std::vector<std::int32_t> tokens = step_->most_likely(parts.step);
        for (std::size_t i = 0; i < tokens.size(); ++i) all[parts.step_indices[i]] = tokens[i];
    }
    return all;
}

}  // namespace gradtile
