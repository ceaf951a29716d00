#include <gradtile/tools/generation/sampler.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/philox.h>

namespace gradtile {
namespace {

void validate(const SampleOptions& options) {
    check_range("sample: tokens", options.tokens, sample_limits::tokens);
    check_range("sample: temperature", options.temperature, sample_limits::temperature);
    check_range("sample: top-k", options.top_k, sample_limits::top_k);
    check_range("sample: top-p", options.top_p, sample_limits::top_p);
    check_range("sample: min-p", options.min_p, sample_limits::min_p);
    check_range("sample: repetition-penalty", options.repetition_penalty, sample_limits::repetition_penalty);
}

/// Returns draw number `index` of a text: uniform in [0, 1) with 53 bits.
double uniform(std::uint64_t seed, std::uint64_t number, std::int64_t index) {
    // The purpose gives sampling a key that no other use of the seed has.
    constexpr std::uint64_t purpose = 0x73616d70;
    const auto counter = static_cast<std::uint64_t>(index);
    const Philox::Counter words =
        Philox::draw({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
                      static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32)},
                     philox_key(mix_seed(seed, purpose)));
    return static_cast<double>((std::uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
}

/// Returns the tokens before a text without a prompt: what the tokenizer puts before each text, or a line
/// break, as between two paragraphs.
std::vector<std::int32_t> start_tokens(const Tokenizer& tokenizer) {
    std::vector<std::int32_t> begin = tokenizer.encode("", "sample", {.add_special_tokens = true});
    if (!begin.empty()) return begin;
    try {
        begin = tokenizer.encode("\n", "sample");
    } catch (const Error&) {
        // The vocabulary has no line break.
    }
    return begin.empty() ? std::vector<std::int32_t>{0} : begin;
}

TextPlace place_after(const std::string& prompt) {
    return prompt.empty() ? TextPlace::start : TextPlace::middle;
}

/// A token that may be drawn, and its probability times a constant.
struct Candidate {
    double logit, weight = 0.0;
    std::int32_t token;

    /// From the most likely token to the least likely; equally likely tokens by id, so that the order is
    /// unique.
    bool operator<(const Candidate& other) const {
        return logit != other.logit ? logit > other.logit : token < other.token;
    }
};

/// Candidates in their order. Only the requested candidates are sorted: a draw seldom needs more than a few
/// hundred candidates from a vocabulary with 50,000 tokens, and sorting all takes longer than a GPU's forward
/// pass.
class LikeliestFirst {
  public:
    explicit LikeliestFirst(std::vector<Candidate> candidates) : candidates_(std::move(candidates)) {}
    std::size_t size() const { return candidates_.size(); }
    const Candidate& operator[](std::size_t i) {
        if (i >= sorted_) sort_more(i);
        return candidates_[i];
    }

  private:
    void sort_more(std::size_t i) {
        constexpr std::size_t first = 64, growth = 4;
        const std::size_t end = std::min(size(), std::max({first, i + 1, growth * sorted_}));
        const auto candidate_at = [&](std::size_t n) {
            return candidates_.begin() + static_cast<std::ptrdiff_t>(n);
        };
        if (end < size()) std::nth_element(candidate_at(sorted_), candidate_at(end), candidates_.end());
        std::sort(candidate_at(sorted_), candidate_at(end));
        sorted_ = end;
    }

    std::vector<Candidate> candidates_;
    std::size_t sorted_ = 0;  // candidates in their place
};

/// The tokens that top_k and min_p leave, with their weights.
std::vector<Candidate> candidates_of(std::span<const double> logits, const SampleOptions& options,
                                     double largest) {
    std::vector<Candidate> candidates(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
        candidates[i] = {.logit = logits[i], .token = static_cast<std::int32_t>(i)};
    if (options.top_k > 0 && options.top_k < std::ssize(candidates)) {
        std::nth_element(candidates.begin(), candidates.begin() + options.top_k, candidates.end());
        candidates.resize(static_cast<std::size_t>(options.top_k));
    }
    if (options.min_p > 0.0) {
        const double least = largest + options.temperature * std::log(options.min_p);
        std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.logit < least; });
    }
    for (Candidate& candidate : candidates)
        candidate.weight = std::exp((candidate.logit - largest) / options.temperature);
    return candidates;
}

}  // namespace

std::int32_t choose_token(std::span<const double> logits, const SampleOptions& options, double u) {
    check(!logits.empty(), "sample: no logits; expected one for each token");
    for (std::size_t i = 0; i < logits.size(); ++i)
        check(std::isfinite(logits[i]), "sample: the logit of token ", i, " is ", logits[i]);
    const auto most_likely = std::ranges::max_element(logits);
    if (options.temperature == 0.0) return static_cast<std::int32_t>(most_likely - logits.begin());

    std::vector<Candidate> candidates = candidates_of(logits, options, *most_likely);
    double sum = 0.0;
    for (const Candidate& candidate : candidates) sum += candidate.weight;
    LikeliestFirst sorted(std::move(candidates));
    // With top_p, the draw is among the fewest tokens whose weights add up to at least top_p * sum.
    double drawable = sum;
    if (options.top_p < 1.0) {
        drawable = 0.0;
        for (std::size_t i = 0; i < sorted.size() && drawable < options.top_p * sum; ++i)
            drawable += sorted[i].weight;
    }
    double cumulative = 0.0;
    std::int32_t chosen = sorted[0].token;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
        chosen = sorted[i].token;
        cumulative += sorted[i].weight;
        // Rounding can make every cumulative sum at most u * drawable. The last candidate is then drawn.
        if (cumulative > u * drawable || (options.top_p < 1.0 && cumulative >= drawable)) break;
    }
    return chosen;
}

void penalise_repetition(std::span<double> logits, std::span<const std::int32_t> text, double penalty) {
    if (penalty == 1.0) return;
    std::vector<bool> seen(logits.size());
    for (const std::int32_t token : text) {
        const auto index = static_cast<std::size_t>(token);
        if (index >= logits.size() || seen[index]) continue;
        seen[index] = true;
        logits[index] = logits[index] > 0.0 ? logits[index] / penalty : logits[index] * penalty;
    }
}

TokenChooser::TokenChooser(const LanguageModel& model, const SampleOptions& options)
    : options_(options), vocabulary_(model.transformer.config.vocabulary), drawable_(vocabulary_) {
    validate(options);
    if (!model.tokenizer) return;
    // The vocabulary may be larger than the tokenizer's, and have holes.
    drawable_ = std::min(drawable_, model.tokenizer->vocab_size());
    for (std::int32_t token = 0; token < drawable_; ++token)
        if (!model.tokenizer->has_text(token)) without_text_.push_back(static_cast<std::size_t>(token));
}

void TokenChooser::remove_undrawable(std::vector<double>& logits) const {
    constexpr double never_drawn = -1e300;
    for (const std::size_t token : without_text_) logits[token] = never_drawn;
    logits.resize(static_cast<std::size_t>(drawable_));
}

std::int32_t TokenChooser::choose(std::vector<double> logits, std::span<const std::int32_t> text,
                                  std::uint64_t number, std::int64_t index) const {
    check(std::ssize(logits) == vocabulary_, "sample: ", logits.size(), " logits; expected ", vocabulary_);
    penalise_repetition(logits, text, options_.repetition_penalty);
    remove_undrawable(logits);
    return choose_token(logits, options_, uniform(options_.seed, number, index));
}

bool TokenChooser::takes_most_likely() const {
    return options_.temperature == 0.0 && options_.repetition_penalty == 1.0 && drawable_ == vocabulary_ &&
           without_text_.empty();
}

std::vector<std::int32_t> TokenSampler::next(std::span<const GrowingText> texts) {
    std::vector<NextToken::Text> read;
    for (const GrowingText& text : texts) read.push_back({text.slot, text.tokens});
    if (chooser_.takes_most_likely()) return next_.most_likely(read);
    std::vector<std::vector<double>> logits = next_.logits(read);
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < texts.size(); ++i)
        tokens.push_back(
            chooser_.choose(std::move(logits[i]), texts[i].tokens, texts[i].number, texts[i].drawn));
    return tokens;
}

void check_prompt(const LanguageModel& model, std::span<const std::int32_t> prompt) {
    check(!prompt.empty(), "sample: the prompt has no token");
    const std::int64_t vocabulary = model.transformer.config.vocabulary;
    const ModelConfig& config = model.transformer.config;
    check(!config.prefix || std::ssize(prompt) <= config.context, "sample: a prompt of ", prompt.size(),
          " tokens; a model with prefix reads at most its context, ", config.context);
    for (const std::int32_t token : prompt)
        check(token >= 0 && token < vocabulary, "sample: token ", token,
              " of the prompt is outside the vocabulary of ", vocabulary);
}

namespace {

/// The most tokens that one of the texts can have.
std::int64_t longest_text(std::span<const TokenRequest> requests, std::int64_t drawn) {
    std::int64_t longest = 0;
    for (const TokenRequest& request : requests)
        longest = std::max<std::int64_t>(longest, std::ssize(request.prompt));
    return longest + drawn;
}

class BatchSampler {
  public:
    BatchSampler(const LanguageModel& model, std::span<const TokenRequest> requests,
                 const SampleOptions& options, std::int64_t slots, const BatchTokenHandler& handler)
        : requests_(requests),
          tokens_(options.tokens),
          longest_(model.transformer.config.prefix ? model.transformer.config.context
                                                   : std::numeric_limits<std::int64_t>::max()),
          handler_(handler),
          sampler_(model, options, slots),
          slots_(static_cast<std::size_t>(slots)) {
        if (tokens_ > 0) sampler_.reserve(longest_text(requests, tokens_));
    }

    void run() {
        for (std::size_t slot = 0; slot < slots_.size(); ++slot) begin_next(slot);
        while (std::ranges::any_of(slots_, [](const auto& text) { return text.has_value(); })) draw();
    }

  private:
    struct Text {
        std::size_t request = 0;
        std::vector<std::int32_t> tokens;  // with the prompt
        std::int64_t drawn = 0;
    };

    /// Gives the slot to the next request that has tokens to draw; without one, empties it.
    void begin_next(std::size_t slot) {
        slots_[slot].reset();
        sampler_.begin_text(static_cast<std::int64_t>(slot));
        while (next_request_ < requests_.size() && !slots_[slot]) {
            const std::size_t request = next_request_++;
            if (tokens_ == 0) {
                end(request);
            } else {
                const std::span<const std::int32_t> prompt = requests_[request].prompt;
                slots_[slot] = {.request = request, .tokens = {prompt.begin(), prompt.end()}};
            }
        }
    }

    /// Draws one token for each text.
    void draw() {
        std::vector<GrowingText> texts;
        for (std::size_t slot = 0; slot < slots_.size(); ++slot)
            if (const std::optional<Text>& text = slots_[slot])
                texts.push_back({.slot = static_cast<std::int64_t>(slot),
                                 .tokens = text->tokens,
                                 .number = requests_[text->request].number,
                                 .drawn = text->drawn});
        const std::vector<std::int32_t> tokens = sampler_.next(texts);
        for (std::size_t i = 0; i < texts.size(); ++i) {
            const auto slot = static_cast<std::size_t>(texts[i].slot);
            if (add_token(*slots_[slot], tokens[i])) continue;
            end(slots_[slot]->request);
            begin_next(slot);
        }
    }

    /// Returns false when the text has ended.
    bool add_token(Text& text, std::int32_t token) {
        ++text.drawn;
        text.tokens.push_back(token);
        const bool goes_on = !handler_.on_token || handler_.on_token(text.request, token);
        return goes_on && text.drawn < tokens_ && std::ssize(text.tokens) <= longest_;
    }

    void end(std::size_t request) const {
        if (handler_.on_end) handler_.on_end(request);
    }

    std::span<const TokenRequest> requests_;
    std::int64_t tokens_;
    std::int64_t longest_;  // text that the model can read
    const BatchTokenHandler& handler_;
    TokenSampler sampler_;
    std::vector<std::optional<Text>> slots_;
    std::size_t next_request_ = 0;
};

}  // namespace

void sample_token_batch(const LanguageModel& model, std::span<const TokenRequest> requests,
                        const SampleOptions& options, std::int64_t batch, const BatchTokenHandler& handler) {
    check(batch >= 1, "sample: batch ", batch, "; expected at least 1");
    for (const TokenRequest& request : requests) check_prompt(model, request.prompt);
    if (requests.empty()) return;
    BatchSampler(model, requests, options, std::min<std::int64_t>(batch, std::ssize(requests)), handler)
        .run();
}

std::vector<std::int32_t> sample_tokens(const LanguageModel& model, std::span<const std::int32_t> prompt,
                                        const SampleOptions& options, const TokenHandler& on_token) {
    std::vector<std::int32_t> drawn;
    const TokenRequest request{prompt, options.number};
    sample_token_batch(model, {&request, 1}, options, /*batch=*/1,
                       {.on_token = [&](std::size_t, std::int32_t token) {
                           drawn.push_back(token);
                           return !on_token || on_token(token);
                       }});
    return drawn;
}

std::vector<std::int32_t> prompt_tokens(const LanguageModel& model, const std::string& prompt,
                                        const std::string& where) {
    const Tokenizer& tokenizer = tokenizer_of(model, "sample");
    if (prompt.empty()) return start_tokens(tokenizer);
    return tokenizer.encode(prompt, where,
                            {.special_tokens = SpecialTokens::recognised, .add_special_tokens = true});
}

SampledTextBuilder::SampledTextBuilder(const LanguageModel& model, const SampleOptions& options,
                                       TextPlace place, PieceHandler on_text)
    : decoder_(tokenizer_of(model, "sample"), place), stop_(options.stop), on_text_(std::move(on_text)) {
    if (!options.ignore_eos) end_tokens_ = end_tokens_of(model);
}

void SampledTextBuilder::append(const std::string& piece) {
    result_.text += piece;
    if (on_text_ && !piece.empty()) on_text_(piece);
}

bool SampledTextBuilder::add(std::int32_t token) {
    result_.tokens.push_back(token);
    if (std::ranges::find(end_tokens_, token) != end_tokens_.end()) {
        result_.stopped = true;
        return false;
    }
    append(stop_.next(decoder_.next(token)));
    return !stop_.found();
}

SampledText SampledTextBuilder::finish() {
    append(stop_.next(decoder_.finish()));
    append(stop_.finish());
    result_.stopped = result_.stopped || stop_.found();
    return std::move(result_);
}

SampledText sample_text(const LanguageModel& model, const SampleOptions& options,
                        const SampledTextBuilder::PieceHandler& on_text) {
    const std::vector<std::int32_t> prompt = prompt_tokens(model, options.prompt);
    SampledTextBuilder text(model, options, place_after(options.prompt), on_text);
    sample_tokens(model, prompt, options, [&](std::int32_t token) { return text.add(token); });
    return text.finish();
}

std::string sample(const LanguageModel& model, const SampleOptions& options) {
    return options.prompt + sample_text(model, options).text;
}

namespace {

/// How many of the longest texts' keys and values take at most half of the available memory: 1 to 64.
std::int64_t automatic_batch(const LanguageModel& model, std::span<const TokenRequest> requests,
                             std::int64_t drawn) {
    constexpr std::int64_t most = 64;
    const ModelConfig& config = model.transformer.config;
    std::vector<std::int64_t> lengths;
    for (const TokenRequest& request : requests)
        lengths.push_back(std::min(std::ssize(request.prompt) + drawn, config.context));
    std::ranges::sort(lengths, std::greater());
    double left = static_cast<double>(available_memory(model.ctx.device())) / 2;
    std::int64_t batch = 0;
    for (; batch < std::min<std::int64_t>(most, std::ssize(lengths)) && left > 0; ++batch)
        left -= KeyValueCache::bytes_of_text(config, model.parameters.dtype(),
                                             lengths[static_cast<std::size_t>(batch)]);
    return std::max<std::int64_t>(1, left < 0 ? batch - 1 : batch);
}

}  // namespace

void sample_text_batch(const LanguageModel& model, std::span<const std::string> prompts, std::size_t samples,
                       const SampleOptions& options, std::int64_t batch, const BatchTextHandler& handler) {
    std::vector<std::vector<std::int32_t>> tokens;
    for (std::size_t i = 0; i < prompts.size(); ++i)
        tokens.push_back(prompt_tokens(model, prompts[i], concat("prompt ", i + 1)));
    std::vector<TokenRequest> requests;
    for (const std::vector<std::int32_t>& prompt : tokens)
        for (std::size_t sample = 0; sample < samples; ++sample) requests.push_back({prompt, sample});
    if (batch == 0) batch = automatic_batch(model, requests, options.tokens);
    std::map<std::size_t, SampledTextBuilder> growing;
    const auto text_of = [&](std::size_t i) -> SampledTextBuilder& {
        const auto piece_of = [&handler, i](std::string_view piece) {
            if (handler.on_text) handler.on_text(i, piece);
        };
        return growing.try_emplace(i, model, options, place_after(prompts[i / samples]), piece_of)
            .first->second;
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

}  // namespace gradtile
