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
    return with_arena_for(model.ctx.with_deterministic(true), longest_pass, /*slack=*/2.0);
}

namespace {

Context context_of_one_text(const LanguageModel& model) {
    const Transformer& transformer = model.transformer;
    return generation_context(model, [&](const Context& dry) {
        KeyValueCache cache(dry, transformer.config, model.parameters.dtype());
        transformer.logits(dry, empty(dry, {1, transformer.config.context}, DType::i32), cache);
        if (TokenStep::exists_for(model)) TokenStep::plan(dry, model, cache, 1);
    });
}

}  // namespace

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

NextToken::NextToken(const LanguageModel& model, bool use_cache)
    : model_(model), ctx_(context_of_one_text(model)), window_(model.transformer.config.context) {
    if (!use_cache) return;
    cache_ = std::make_unique<KeyValueCache>(ctx_, model.transformer.config, model.parameters.dtype());
    if (TokenStep::exists_for(model)) step_ = std::make_unique<TokenStep>(ctx_, model, *cache_, 1);
}

/// The tokens in the text's window that the cache lacks; without a cache all tokens in the window.
std::span<const std::int32_t> NextToken::unread_part(std::span<const std::int32_t> text) {
    check(!text.empty(), "next token: the text has no token");
    const auto continues = [&] {
        const auto from = std::min(static_cast<std::size_t>(begin_), text.size());
        return std::ranges::mismatch(text.subspan(from), read_).in2 == read_.end();
    };
    if (!continues()) window_ = TextWindow(model_.transformer.config.context);
    begin_ = window_.begin_of(std::ssize(text));
    const auto window = text.subspan(static_cast<std::size_t>(begin_));
    // A key depends only on its token's position in the window and on the tokens before it.
    const auto known = std::ranges::mismatch(window, read_).in1 - window.begin();
    read_.assign(window.begin(), window.end());
    if (cache_) cache_->length = std::min(known, std::ssize(window) - 1);
    return window.subspan(static_cast<std::size_t>(cache_ ? cache_->length : 0));
}

TokenStep::Input NextToken::step_input(std::span<const std::int32_t> unread) {
    return {.slot = 0, .position = cache_->length++, .token = unread.front()};
}

std::vector<double> NextToken::logits_after(std::span<const std::int32_t> unread) {
    if (is_step(unread)) return std::move(step_->logits(std::array{step_input(unread)}).front());
    const Tensor tokens = from_host(ctx_, unread, {1, std::ssize(unread)});
    return to_host(ctx_, cache_ ? model_.transformer.logits(ctx_, tokens, *cache_)
                                : model_.transformer.logits(ctx_, tokens));
}

std::vector<double> NextToken::logits(std::span<const std::int32_t> text) {
    return logits_after(unread_part(text));
}

std::int32_t NextToken::most_likely(std::span<const std::int32_t> text) {
    const std::span<const std::int32_t> unread = unread_part(text);
    if (is_step(unread)) return step_->most_likely(std::array{step_input(unread)}).front();
    return most_likely_token(logits_after(unread));
}

}  // namespace gradtile
