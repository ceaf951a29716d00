#include <gradtile/train/validation_loss.h>

#include <algorithm>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

struct LossSum {
    double loss = 0.0;
    std::int64_t targets = 0;
};

/// Calls the hooks of a forward pass, for a process without data: those of other processes exchange values.
void skip_forward(const Transformer& model, const ForwardHooks& hooks) {
    for (std::size_t stage = 0; stage < model.last_stage(); ++stage)
        notify_before_stage(hooks, stage, stage + 1);
    notify_before_stage(hooks, model.last_stage(), {});
}

using GoOn = std::function<bool(std::int64_t windows_done)>;

/// Sums the losses over this group's batches, or this process's part of them. Returns nothing when go_on
/// returned false.
std::optional<LossSum> sum_losses(const Context& ctx, const Transformer& model, EvaluationData& data,
                                  const SharedSequences& shared, const GoOn& go_on,
                                  const ForwardHooks& hooks) {
    LossSum sum;
    const std::int64_t first = shared.group(), stride = shared.groups();
    SequentialLoader& loader = data.loader;
    Batch& batch = data.batch;
    const std::int64_t rows = batch.tokens.size(0), windows = loader.windows();
    loader.rewind();
    loader.skip(first * rows);
    // A process without a batch still takes part in the exchanges of the others' pass, and votes.
    const auto next_batch = [&] {
        try {
            return loader.next(batch);
        } catch (...) {
            skip_forward(model, hooks);
            throw;
        }
    };
    for (std::int64_t done = 0; done < windows;) {
        if (loader.done()) {
            skip_forward(model, hooks);
        } else {
            const std::int64_t targets = next_batch();
            if (shared.is_first()) sum.targets += targets;
            const Batch on_device =
                shared.part_of(ctx, upload(ctx, shared.with_row_ranges(host_of(ctx), batch)));
            // The host adds the losses in order in float64, so the sum depends on the batch size only by
            // rounding.
            sum.loss +=
                item(ctx, model.evaluate(ctx, on_device.tokens, on_device.targets, on_device.documents, hooks)
                              .slice(0, 0, 1));
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
    const Documents& documents = host.documents;
    if (documents) batch.documents.positions = to_device(ctx, documents.positions);
    if (documents.offsets.defined()) batch.documents.offsets = to_device(ctx, documents.offsets);
    if (documents.row_ranges.defined()) batch.documents.row_ranges = to_device(ctx, documents.row_ranges);
    return batch;
}

std::optional<double> mean_loss(const Context& ctx, const Transformer& model, EvaluationData& data,
                                const Communicator& communicator, const SharedSequences& shared,
                                const GoOn& go_on, const ForwardHooks& hooks) {
    const std::optional<LossSum> own = sum_losses(ctx, model, data, shared, go_on, hooks);
    if (!own) return std::nullopt;
    double loss_and_targets[] = {own->loss, static_cast<double>(own->targets)};
    communicator.barrier(ctx);  // detects a process that does not arrive
    communicator.sum(ctx, loss_and_targets);
    return loss_and_targets[0] / loss_and_targets[1];
}

}  // namespace gradtile
