#include <gradtile/train/sampler.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gradtile/core/philox.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

void validate(const SampleOptions& options) {
    check_range("sample: tokens", options.tokens, sample_limits::tokens);
    check_range("sample: temperature", options.temperature, sample_limits::temperature);
    check_range("sample: top-k", options.top_k, sample_limits::top_k);
    check_range("sample: top-p", options.top_p, sample_limits::top_p);
}

/// Returns draw number `index` of a seed: uniform in [0, 1) with 53 bits.
double uniform(std::uint64_t seed, std::int64_t index) {
    // The purpose gives sampling a different key from other uses of the seed.
    constexpr std::uint64_t purpose = 0x73616d70;
    const auto counter = static_cast<std::uint64_t>(index);
    const Philox::Counter words =
        Philox::draw({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
                     philox_key(mix_seed(seed, purpose)));
    return static_cast<double>((std::uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
}

/// Returns the context of a text without a prompt: a line break, as between two paragraphs.
std::vector<std::int32_t> start_tokens(const Tokenizer& tokenizer) {
    try {
        return tokenizer.encode("\n", "sample");
    } catch (const Error&) {
        return {0};  // the vocabulary has no line break
    }
}

/// Returns the context for sampling. On a GPU, each token needs activations of another length. The arena has
/// twice the size that the longest length needs, because the lengths leave gaps that the dry run does not
/// have. Each length has matrix products of new shapes, for which timing algorithms takes longer than it
/// saves, so the context is deterministic and does not time them.
Context sampling_context(const LanguageModel& model) {
    if (model.ctx.device().is_cpu()) return model.ctx;
    return with_arena_for(
        model.ctx.with_deterministic(true),
        [&](const Context& dry) {
            model.transformer.logits(dry, empty(dry, {1, model.transformer.config.context}, DType::i32));
        },
        /*slack=*/2.0);
}

}  // namespace

std::int32_t choose_token(std::span<const double> logits, const SampleOptions& options, double u) {
    for (std::size_t i = 0; i < logits.size(); ++i)
        check(std::isfinite(logits[i]), "sample: the logit of token ", i, " is ", logits[i]);
    const auto most_likely = std::ranges::max_element(logits);
    if (options.temperature == 0.0) return static_cast<std::int32_t>(most_likely - logits.begin());

    // Sorts from the most likely token to the least likely, and tokens of equal probability by id, so that
    // the order is unique.
    std::vector<std::int32_t> tokens(logits.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    const auto logit = [&](std::int32_t token) { return logits[static_cast<std::size_t>(token)]; };
    const auto likelier = [&](std::int32_t a, std::int32_t b) {
        return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
    };
    if (options.top_k > 0 && options.top_k < std::ssize(tokens)) {
        std::ranges::nth_element(tokens, tokens.begin() + options.top_k, likelier);
        tokens.resize(static_cast<std::size_t>(options.top_k));
    }
    std::ranges::sort(tokens, likelier);

    std::vector<double> cumulative;
    double sum = 0.0;
    for (const std::int32_t token : tokens)
        cumulative.push_back(sum += std::exp((logit(token) - *most_likely) / options.temperature));
    const auto nucleus = std::ranges::lower_bound(cumulative, options.top_p * sum);
    const std::size_t kept =
        std::min(tokens.size(), static_cast<std::size_t>(nucleus - cumulative.begin()) + 1);
    const double threshold = u * cumulative[kept - 1];
    const auto chosen = std::upper_bound(cumulative.begin(),
                                         cumulative.begin() + static_cast<std::ptrdiff_t>(kept), threshold);
    const auto index = std::min(static_cast<std::size_t>(chosen - cumulative.begin()), kept - 1);
    return tokens[index];
}

std::vector<std::int32_t> sample_tokens(const LanguageModel& model, std::span<const std::int32_t> prompt,
                                        const SampleOptions& options) {
    validate(options);
    check(!prompt.empty(), "sample: the prompt has no token");
    const ModelConfig& config = model.transformer.config;
    const Context ctx = sampling_context(model);
    // The vocabulary may be larger than the tokenizer's. Ids without text are never drawn.
    const auto drawable = static_cast<std::size_t>(
        model.tokenizer ? std::min(model.tokenizer->vocab_size(), config.vocabulary) : config.vocabulary);
    for (const std::int32_t token : prompt)
        check(token >= 0 && token < config.vocabulary, "sample: token ", token,
              " of the prompt is outside the vocabulary of ", config.vocabulary);
    std::vector<std::int32_t> without_text;
    for (std::int32_t token = 0; model.tokenizer && token < static_cast<std::int32_t>(drawable); ++token)
        if (!model.tokenizer->has_text(token)) without_text.push_back(token);
    constexpr double never_drawn = -1e300;
    std::vector<std::int32_t> text(prompt.begin(), prompt.end());
    for (std::int64_t i = 0; i < options.tokens; ++i) {
        const auto length = std::min<std::int64_t>(std::ssize(text), config.context);
        const std::span<const std::int32_t> window(text.end() - length, text.end());
        const Tensor logits = model.transformer.logits(ctx, from_host(ctx, window, {1, length}));
        std::vector<double> values = to_host(ctx, logits);
        for (const std::int32_t token : without_text) values[static_cast<std::size_t>(token)] = never_drawn;
        text.push_back(choose_token(std::span(values).first(drawable), options, uniform(options.seed, i)));
    }
    text.erase(text.begin(), text.begin() + std::ssize(prompt));
    return text;
}

std::string sample(const LanguageModel& model, const SampleOptions& options) {
    check(model.tokenizer.has_value(), "sample: the model was trained on token files and has no tokenizer");
    const Tokenizer& tokenizer = *model.tokenizer;
    const std::vector<std::int32_t> prompt =
        options.prompt.empty()
            ? start_tokens(tokenizer)
            : tokenizer.encode(options.prompt, "prompt", {.special_tokens = SpecialTokens::recognised});
    return options.prompt + tokenizer.decode(sample_tokens(model, prompt, options));
}

}  // namespace gradtile
