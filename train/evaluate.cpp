#include <gradtile/train/evaluate.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

struct TextLength {
    std::int64_t bytes = 0, characters = 0;
};

/// Returns the length of the targets as text: all tokens but the first.
TextLength text_of_targets(const Tokenizer& tokenizer, const TokenSequence& tokens) {
    constexpr std::int64_t piece = 1 << 16;
    std::vector<std::int32_t> ids;
    TextLength text;
    for (std::int64_t begin = 1; begin < tokens.size(); begin += piece) {
        ids.resize(static_cast<std::size_t>(std::min(piece, tokens.size() - begin)));
        tokens.read(begin, ids);
        for (const char byte : tokenizer.decode(ids)) {
            ++text.bytes;
            // Counts every byte that is not a UTF-8 continuation byte.
            text.characters += (byte & 0xc0) != 0x80;
        }
    }
    return text;
}

struct LossSum {
    double loss = 0.0;
    std::int64_t targets = 0;
};

using GoOn = std::function<bool(std::int64_t windows_done)>;

/// Sums the losses of every `stride`-th batch, from batch number `first`. Returns nothing when go_on returned
/// false.
std::optional<LossSum> sum_losses(const Context& ctx, const Transformer& model, EvaluationData& data,
                                  std::int64_t first, std::int64_t stride, const GoOn& go_on) {
    LossSum sum;
    auto& [loader, batch] = data;
    const std::int64_t rows = batch.tokens.size(0), windows = loader.windows();
    loader.rewind();
    loader.skip(first * rows);
    // A process without a batch in the last round still votes.
    for (std::int64_t done = 0; done < windows;) {
        if (!loader.done()) {
            sum.targets += loader.next(batch);
            const Batch on_device = upload(ctx, batch);
            // The host adds the losses in order in float64, so the sum depends on the batch size only by
            // rounding.
            sum.loss += item(
                ctx,
                model.evaluate(ctx, on_device.tokens, on_device.targets, on_device.documents).slice(0, 0, 1));
            loader.skip((stride - 1) * rows);
        }
        done = std::min(done + stride * rows, windows);
        if (!go_on(done)) return std::nullopt;
    }
    return sum;
}

}  // namespace

Batch upload(const Context& ctx, const Batch& host) {
    Batch batch{to_device(ctx, host.tokens), to_device(ctx, host.targets)};
    if (host.documents)
        batch.documents = {.offsets = to_device(ctx, host.documents.offsets),
                           .positions = to_device(ctx, host.documents.positions)};
    return batch;
}

std::optional<double> mean_loss(const Context& ctx, const Transformer& model, EvaluationData& data,
                                const Communicator& communicator, const GoOn& go_on) {
    const std::optional<LossSum> own =
        sum_losses(ctx, model, data, communicator.rank(), communicator.size(), go_on);
    if (!own) return std::nullopt;
    const double loss_and_targets[] = {own->loss, static_cast<double>(own->targets)};
    const Tensor sum =
        from_host(ctx.with_allocator(system_allocator(ctx.device())), loss_and_targets, {2}, DType::f64);
    communicator.barrier(ctx);  // detects a process that does not arrive
    communicator.all_reduce(ctx, sum);
    return item(ctx, sum.slice(0, 0, 1)) / item(ctx, sum.slice(0, 1, 1));
}

Evaluation evaluate(const LanguageModel& model, const TokenSequence& tokens, const EvaluateOptions& options) {
    if (model.ctx.device().is_cpu()) return evaluate(model.ctx, model, tokens, options);
    const SequentialOptions loading{options.ignore_token, options.packing};
    const Context inside = with_arena_for(model.ctx, [&](const Context& dry) {
        const std::int64_t context = model.transformer.config.context;
        const std::int64_t windows = SequentialLoader(tokens, context, loading).windows();
        const Batch batch = empty_batch(dry, std::min(options.batch, windows), context, options.packing);
        model.transformer.evaluate(dry, batch.tokens, batch.targets, batch.documents);
    });
    return evaluate(inside, model, tokens, options);
}

Evaluation evaluate(const Context& ctx, const LanguageModel& model, const TokenSequence& tokens,
                    const EvaluateOptions& options) {
    const std::int64_t context = model.transformer.config.context;
    SequentialLoader loader(tokens, context, {options.ignore_token, options.packing});
    const std::int64_t rows = std::min(options.batch, loader.windows());
    EvaluationData data{std::move(loader), empty_batch(host_of(ctx), rows, context, options.packing)};
    const LossSum sum = *sum_losses(ctx, model.transformer, data, 0, 1, [](std::int64_t) { return true; });
    Evaluation result{.loss = sum.loss / static_cast<double>(sum.targets), .targets = sum.targets};
    result.perplexity = std::exp(result.loss);
    if (model.tokenizer && sum.targets == tokens.size() - 1) {
        const TextLength text = text_of_targets(*model.tokenizer, tokens);
        const double bits = sum.loss / std::numbers::ln2;
        result.bits_per_character = bits / static_cast<double>(text.characters);
        result.bits_per_byte = bits / static_cast<double>(text.bytes);
    }
    return result;
}

}  // namespace gradtile
