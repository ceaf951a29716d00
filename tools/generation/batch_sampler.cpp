#include <gradtile/tools/generation/batch_sampler.h>

#include <algorithm>
#include <map>
#include <optional>

#include <gradtile/core/available_memory.h>
#include <gradtile/tools/generation/next_token_batch.h>

namespace gradtile {
namespace {

/// A text that is being generated.
struct GrowingText {
    std::size_t request = 0;
    std::vector<std::int32_t> tokens;  // with the prompt
    std::int64_t drawn = 0;
};

class BatchSampler {
  public:
    BatchSampler(const LanguageModel& model, std::span<const TokenRequest> requests,
                 const SampleOptions& options, std::int64_t slots, const BatchTokenHandler& handler)
        : requests_(requests),
          tokens_(options.tokens),
          handler_(handler),
          chooser_(model, options),
          next_(model, slots),
          slots_(static_cast<std::size_t>(slots)) {}

    void run() {
        for (std::size_t slot = 0; slot < slots_.size(); ++slot) begin_next(slot);
        while (std::ranges::any_of(slots_, [](const auto& text) { return text.has_value(); })) draw();
    }

  private:
    /// Gives the slot to the next request that has tokens to draw; without one, empties it.
    void begin_next(std::size_t slot) {
        slots_[slot].reset();
        while (next_request_ < requests_.size() && !slots_[slot]) {
            const std::size_t request = next_request_++;
            if (tokens_ == 0) {
                end(request);
            } else {
                const std::span<const std::int32_t> prompt = requests_[request].prompt;
                slots_[slot] = {.request = request, .tokens = {prompt.begin(), prompt.end()}};
                next_.begin_text(static_cast<std::int64_t>(slot));
            }
        }
    }

    /// Draws one token for each text.
    void draw() {
        std::vector<NextTokenBatch::Text> texts;
        for (std::size_t slot = 0; slot < slots_.size(); ++slot)
            if (slots_[slot]) texts.push_back({static_cast<std::int64_t>(slot), slots_[slot]->tokens});
        const std::vector<std::int32_t> tokens = next_tokens(texts);
        for (std::size_t i = 0; i < texts.size(); ++i) {
            const auto slot = static_cast<std::size_t>(texts[i].slot);
            if (add_token(*slots_[slot], tokens[i])) continue;
            end(slots_[slot]->request);
            begin_next(slot);
        }
    }

    std::vector<std::int32_t> next_tokens(const std::vector<NextTokenBatch::Text>& texts) {
        if (chooser_.takes_most_likely()) return next_.most_likely(texts);
        std::vector<std::vector<double>> logits = next_.logits(texts);
        std::vector<std::int32_t> tokens;
        for (std::size_t i = 0; i < texts.size(); ++i) {
            const GrowingText& text = *slots_[static_cast<std::size_t>(texts[i].slot)];
            tokens.push_back(chooser_.choose(std::move(logits[i]), text.tokens,
                                             requests_[text.request].number, text.drawn));
        }
        return tokens;
    }

    /// Returns false when the text has ended.
    bool add_token(GrowingText& text, std::int32_t token) {
        ++text.drawn;
        text.tokens.push_back(token);
        const bool goes_on = !handler_.on_token || handler_.on_token(text.request, token);
        return goes_on && text.drawn < tokens_;
    }

    void end(std::size_t request) const {
        if (handler_.on_end) handler_.on_end(request);
    }

    std::span<const TokenRequest> requests_;
    std::int64_t tokens_;
    const BatchTokenHandler& handler_;
    TokenChooser chooser_;
    NextTokenBatch next_;
    std::vector<std::optional<GrowingText>> slots_;
    std::size_t next_request_ = 0;
};

}  // namespace

void sample_token_batch(const LanguageModel& model, std::span<const TokenRequest> requests,
                        const SampleOptions& options, std::int64_t batch, const BatchTokenHandler& handler) {
    check(batch >= 1, "sample: batch ", batch, "; expected at least 1");
    for (const TokenRequest& request : requests) check_prompt(model, request.prompt);
    if (requests.empty()) return;
    BatchSampler(model, requests, options, std::min(batch, std::ssize(requests)), handler).run();
}

void sample_text_batch(const LanguageModel& model, std::span<const std::string> prompts, std::size_t samples,
                       const SampleOptions& options, std::int64_t batch, const BatchTextHandler& handler) {
    std::vector<std::vector<std::int32_t>> tokens;
    for (std::size_t i = 0; i < prompts.size(); ++i)
        tokens.push_back(prompt_tokens(model, prompts[i], concat("prompt ", i + 1)));
    std::vector<TokenRequest> requests;
    for (const std::vector<std::int32_t>& prompt : tokens)
        for (std::size_t sample = 0; sample < samples; ++sample) requests.push_back({prompt, sample});
    std::map<std::size_t, SampledTextBuilder> growing;
    const auto text_of = [&](std::size_t i) -> SampledTextBuilder& {
        const auto piece_of = [&handler, i](std::string_view piece) {
            if (handler.on_text) handler.on_text(i, piece);
        };
        return growing.try_emplace(i, model, options, piece_of).first->second;
    };
    sample_token_batch(model, requests, options, batch,
                       {.on_token = [&](std::size_t i, std::int32_t token) { return text_of(i).add(token); },
                        .on_end =
                            [&](std::size_t i) {
                                SampledText sampled = text_of(i).finish();
                                growing.erase(i);
                                if (handler.on_end) handler.on_end(i, std::move(sampled));
                            }});
}

std::int64_t automatic_batch(const LanguageModel& model) {
    constexpr std::size_t most = 64;
    const std::size_t fitting = available_memory(model.ctx.device()) / 2 /
                                std::max<std::size_t>(1, NextTokenBatch::bytes_of_slot(model));
    return static_cast<std::int64_t>(std::clamp<std::size_t>(fitting, 1, most));
}

}  // namespace gradtile
