#include <gradtile/tools/generation/next_token.h>

#include <algorithm>
#include <array>
#include <cmath>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/generation/recycling_allocator.h>

namespace gradtile {
Context generation_context(const LanguageModel& model,
                           const std::function<void(const Context&)>& longest_pass) {
    if (model.ctx.device().is_cpu())
        return model.ctx.with_allocator(std::make_shared<RecyclingAllocator>(model.ctx.allocator()));
    return with_arena_for(model.ctx.with_deterministic(true), longest_pass, arena_slack(model.ctx.device()));
}

std::int64_t TextWindow::begin_of(std::int64_t length) {
    if (begin_ < 0) begin_ = std::max<std::int64_t>(0, length - context_);
    while (length - begin_ > context_) begin_ += (context_ + 1) / 2;
    return begin_;
}

std::int32_t most_likely_token(std::span<const double> logits) {
    check(!logits.empty(), "next token: no logits; expected one for each token");
    for (std::size_t i = 0; i < logits.size(); ++i)
        check(std::isfinite(logits[i]), "next token: the logit of token ", i, " is ", logits[i]);
    return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

namespace {

/// The most tokens that a pass reads. Every text's window fits, and several short ones.
std::int64_t tokens_of_pass(std::int64_t window, std::int64_t slots) {
    constexpr std::int64_t tokens_of_short_windows = 1024;
    return std::max({window, slots, std::min(window * slots, tokens_of_short_windows)});
}

/// Returns a context with activation memory for any pass of windows with at most `window` tokens
/// (generation_context()). The caches are allocated elsewhere, because the context's arena is twice as large
/// as needed.
Context context_for(const LanguageModel& model, std::int64_t slots, std::int64_t window) {
    const Transformer& transformer = model.transformer;
    return generation_context(model, [&](const Context& dry) {
        const Context elsewhere = dry.plan(Arena::for_planning(dry.device()));
        const KeyValueCache cache(elsewhere, transformer.config, model.parameters.dtype(), slots, window);
        plan_longest_pass(dry, transformer, cache, slots);
        if (TokenStep::exists_for(model)) TokenStep::plan(dry, model, cache, slots);
    });
}

}  // namespace

/// The largest pass: a token from each text, and as many more as there is room for.
void plan_longest_pass(const Context& dry, const Transformer& transformer, const KeyValueCache& cache,
                       std::int64_t slots) {
    const std::int64_t window = cache.capacity(), tokens = tokens_of_pass(window, slots);
    PackedTexts pass;
    for (std::int64_t slot = 0, left = tokens - slots; slot < slots; ++slot) {
        const std::int64_t length = 1 + std::min(left, window - 1);
        pass.texts.push_back({.slot = slot, .start = window - length, .length = length});
        left -= length - 1;
    }
    pass.tokens = pass.positions = empty(dry, {1, tokens}, DType::i32);
    transformer.logits(dry, pass, cache);
}

NextToken::NextToken(const LanguageModel& model, std::int64_t slots, bool use_cache)
    : model_(model),
      context_(model.transformer.config.context),
      use_cache_(use_cache),
      ctx_(model.ctx),
      slots_(static_cast<std::size_t>(slots), Slot(context_)) {}

void NextToken::reserve(std::int64_t length, std::int64_t texts) {
    const std::int64_t room = std::min(length, context_), slots = std::ssize(slots_);
    if (room > room_) {
        // A step's graphs read the cache. The old activation memory is freed before the new one is allocated.
        step_.reset();
        ctx_ = model_.ctx;
        if (cache_) {
            cache_->set_capacity(ctx_, room);
        } else if (use_cache_) {
            cache_ = std::make_unique<KeyValueCache>(KeyValueCache::without_blocks(
                ctx_, model_.transformer.config, model_.parameters.dtype(), slots, room));
        }
        ctx_ = context_for(model_, slots, room);
        room_ = room;
    }
    if (cache_) reserve_blocks(texts * cache_->blocks_of_text(room));
    make_step();
}

/// A step's graphs contain the addresses of the blocks.
void NextToken::reserve_blocks(std::int64_t count) {
    if (count <= cache_->blocks()) return;
    step_.reset();
    cache_->add_blocks(model_.ctx, count - cache_->blocks());
}

void NextToken::make_step() {
    if (cache_ && !step_ && TokenStep::exists_for(model_))
        step_ = std::make_unique<TokenStep>(ctx_, model_, *cache_, std::ssize(slots_));
}

/// Doubling bounds how often a step's graphs are captured again.
void NextToken::make_room_for(std::span<const Text> texts) {
    constexpr std::int64_t least = 256;
    std::int64_t longest = 0;
    for (const Text& text : texts) longest = std::max<std::int64_t>(longest, std::ssize(text.tokens));
    if (std::min(longest, context_) > room_) reserve(std::max(2 * longest, least));
}

/// Gives the texts blocks for all their tokens. A pool that is too small grows by half, or to the blocks
/// needed if they are more: this bounds the number of copies, and the memory without tokens.
void NextToken::take_blocks(std::span<const TextToRead> unread) {
    if (!cache_) return;
    const auto tokens_of = [](const TextToRead& text) { return text.start + std::ssize(text.tokens); };
    std::int64_t more = 0;
    for (const TextToRead& text : unread)
        more += std::max<std::int64_t>(
            0, cache_->blocks_of_text(tokens_of(text)) - cache_->blocks_of_slot(text.slot));
    if (more > cache_->free_blocks()) {
        const std::int64_t blocks = cache_->blocks(), least = blocks - cache_->free_blocks() + more,
                           most = std::ssize(slots_) * cache_->blocks_of_text(room_);
        reserve_blocks(std::clamp(blocks + blocks / 2, least, most));
    }
    for (const TextToRead& text : unread) cache_->resize(text.slot, tokens_of(text));
    cache_->update_table(model_.ctx);
    make_step();
}

void NextToken::begin_text(std::int64_t slot) {
    slot_at(slot) = Slot(context_);
    if (cache_) cache_->resize(slot, 0);
}

NextToken::Slot& NextToken::slot_at(std::int64_t slot) {
    check(slot >= 0 && slot < std::ssize(slots_), "next token: a text in slot ", slot, "; expected 0 to ",
          std::ssize(slots_) - 1);
    return slots_[static_cast<std::size_t>(slot)];
}

/// The tokens in the text's window that the slot's cache lacks, at least the last one; without a cache all
/// tokens in the window.
TextToRead NextToken::unread_part(const Text& text) {
    check(!text.tokens.empty(), "next token: the text has no token");
    Slot& slot = slot_at(text.slot);
    const auto continues = [&] {
        const auto from = std::min(static_cast<std::size_t>(slot.begin), text.tokens.size());
        return std::ranges::mismatch(text.tokens.subspan(from), slot.read).in2 == slot.read.end();
    };
    const bool is_prefix = model_.transformer.config.prefix;
    check(!is_prefix || std::ssize(text.tokens) <= context_, "next token: a text of ", text.tokens.size(),
          " tokens; a model with prefix keeps its prompt, so expected at most its context, ", context_);
    if (!continues()) {
        slot.window = TextWindow(context_);
        if (is_prefix) slot.read.clear();  // its keys depend on the whole prompt
    }
    if (slot.read.empty()) slot.prompt = std::ssize(text.tokens);
    slot.begin = slot.window.begin_of(std::ssize(text.tokens));
    const auto window = text.tokens.subspan(static_cast<std::size_t>(slot.begin));
    // A key depends only on its token's position in the window and on the tokens before it.
    const std::int64_t known = std::ranges::mismatch(window, slot.read).in1 - window.begin();
    slot.read.assign(window.begin(), window.end());
    const std::int64_t start = cache_ ? std::min<std::int64_t>(known, std::ssize(window) - 1) : 0;
    return {text.slot, start, window.subspan(static_cast<std::size_t>(start))};
}

NextToken::Parts NextToken::parts_of(std::span<const Text> texts) {
    make_room_for(texts);
    std::vector<TextToRead> all;
    for (const Text& text : texts) all.push_back(unread_part(text));
    take_blocks(all);
    Parts parts;
    const std::int64_t limit = cache_ ? tokens_of_pass(room_, std::ssize(slots_)) : 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const TextToRead& unread = all[i];
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

Tensor NextToken::logits_without_cache(const TextToRead& text) {
    const std::int64_t length = std::ssize(text.tokens);
    Documents documents;
    if (model_.transformer.config.prefix)
        documents = prefix_documents(ctx_, std::array{slot_at(text.slot).prompt}, length);
    return model_.transformer.logits(ctx_, from_host(ctx_, text.tokens, {1, length}), documents);
}

/// Without a cache, a pass has one text.
std::vector<std::vector<double>> NextToken::logits_of(const Parts::Pass& pass) {
    std::vector<double> logits =
        to_host(ctx_, cache_ ? model_.transformer.logits(ctx_, packed_texts(ctx_, pass.texts), *cache_)
                             : logits_without_cache(pass.texts.front()));
    const auto vocabulary = model_.transformer.config.vocabulary;
    std::vector<std::vector<double>> all;
    if (pass.texts.size() == 1) {
        all.push_back(std::move(logits));
        return all;
    }
    for (auto begin = logits.begin(); begin != logits.end(); begin += vocabulary)
        all.emplace_back(begin, begin + vocabulary);
    return all;
}

std::vector<std::vector<double>> NextToken::logits(std::span<const Text> texts) {
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

std::vector<std::int32_t> NextToken::most_likely(std::span<const Text> texts) {
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
