#include <gradtile/tools/evaluation/evaluate.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/layers/vocabulary.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/validation_loss.h>

namespace gradtile {
namespace {

/// Token lengths as text, by id; 0 for special tokens and ids without a text.
struct TextLengths {
    std::vector<std::int32_t> bytes, characters;

    TextLengths(const std::optional<Tokenizer>& tokenizer, std::int64_t vocabulary)
        : bytes(static_cast<std::size_t>(vocabulary)), characters(bytes.size()) {
        if (!tokenizer) return;
        const auto known = static_cast<std::int32_t>(std::min(vocabulary, tokenizer->vocab_size()));
        for (std::int32_t id = 0; id < known; ++id) {
            if (!tokenizer->has_text(id)) continue;
            const auto index = static_cast<std::size_t>(id);
            for (const char byte : tokenizer->decode(std::span(&id, 1), TextPlace::middle)) {
                ++bytes[index];
                characters[index] += !continues_character(byte);
            }
        }
        const BytePairEncoding* const encoding = tokenizer->byte_pair_encoding();
        if (encoding == nullptr) return;
        for (const AddedToken& token : encoding->vocabulary().added)
            if (token.special && token.id < known)
                bytes[static_cast<std::size_t>(token.id)] = characters[static_cast<std::size_t>(token.id)] =
                    0;
    }
};

}  // namespace

Evaluation evaluate(const LanguageModel& model, const TokenSequence& tokens, const EvaluateOptions& options) {
    if (model.ctx.device().is_cpu()) return evaluate(model.ctx, model, tokens, options);
    const SequentialOptions loading{options.ignore_token, options.packing, options.stride};
    const Context inside = with_arena_for(model.ctx, [&](const Context& dry) {
        std::set<std::pair<std::int64_t, std::int64_t>> planned;
        SequentialLoader loader(tokens, model.transformer.config.context, loading);
        for (; !loader.done(); loader.skip(options.batch)) {
            const Shape shape = loader.next_shape(options.batch);
            if (!planned.emplace(shape[0], shape[1]).second) continue;
            const Batch batch = empty_batch(dry, shape[0], shape[1], loader.packing());
            model.transformer.target_losses(dry, batch.tokens, batch.targets, batch.documents);
        }
    });
    return evaluate(inside, model, tokens, options);
}

Evaluation evaluate(const Context& ctx, const LanguageModel& model, const TokenSequence& tokens,
                    const EvaluateOptions& options) {
    check(options.batch >= 1, "eval: batch: ", options.batch, "; expected at least 1");
    const std::int64_t context = model.transformer.config.context;
    SequentialLoader loader(tokens, context, {options.ignore_token, options.packing, options.stride});
    const std::int64_t windows = loader.windows();
    Batch batch;
    const TextLengths lengths(model.tokenizer, model.transformer.config.vocabulary);
    double sum = 0.0, sum_of_text = 0.0;
    std::int64_t counted = 0, bytes = 0, characters = 0;
    for (std::int64_t done = 0; done < windows;) {
        // The rows are as long as these windows need, so that the work is in proportion to the tokens.
        if (const Shape shape = loader.next_shape(options.batch);
            !batch.tokens.defined() || batch.tokens.shape() != shape)
            batch = empty_batch(host_of(ctx), shape[0], shape[1], loader.packing());
        const std::span<const std::int32_t> targets(batch.targets.data<std::int32_t>(),
                                                    static_cast<std::size_t>(batch.targets.elements()));
        std::int64_t target = counted;
        counted += loader.next(batch);
        const Batch on_device = upload(ctx, batch);
        const std::vector<double> losses = to_host(
            ctx,
            model.transformer.target_losses(ctx, on_device.tokens, on_device.targets, on_device.documents));
        for (std::size_t i = 0; i < targets.size(); ++i) {
            if (targets[i] == ignored_target) continue;
            check(std::isfinite(losses[i]), "eval: the loss of target ", target, " is ", losses[i],
                  "; expected a finite loss");
            ++target;
            sum += losses[i];
            const auto id = static_cast<std::size_t>(targets[i]);
            if (lengths.bytes[id] == 0) continue;
            sum_of_text += losses[i];
            bytes += lengths.bytes[id];
            characters += lengths.characters[id];
        }
        done += batch.tokens.size(0);
        if (options.on_progress) options.on_progress(done, windows);
    }
    Evaluation result{.loss = sum / static_cast<double>(counted), .targets = counted};
    result.perplexity = std::exp(result.loss);
    const double bits = sum_of_text / std::numbers::ln2;
    if (bytes > 0) result.bits_per_byte = bits / static_cast<double>(bytes);
    if (characters > 0) result.bits_per_character = bits / static_cast<double>(characters);
    return result;
}

}  // namespace gradtile
