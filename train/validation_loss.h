#pragma once
/// The loss on the validation data during training.
#include <functional>
#include <optional>

#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/parallel/communicator.h>
#include <gradtile/train/shared_sequences.h>

namespace gradtile {

/// The tokens that evaluation reads, and the host batch that it reads them into.
struct EvaluationData {
    SequentialLoader loader;
    Batch batch;
};

/// Returns the mean loss over windows with the model's context length, in order. Each process, or each group
/// of processes that share sequences, evaluates every shared.groups()-th batch.
///
/// After each round of one batch per group, every process calls `go_on` with the number of windows that all
/// processes together have evaluated. `go_on` must return the same value in every process. If it returns
/// false, the evaluation stops and the result is nullopt. Every process calls the hooks of equally many
/// forward passes.
std::optional<double> mean_loss(const Context& ctx, const Transformer& model, EvaluationData& data,
                                const Communicator& communicator, const SharedSequences& shared,
                                const std::function<bool(std::int64_t windows_done)>& go_on,
                                const ForwardHooks& hooks = {});

/// Copies the batch to ctx's device; returns `host` itself when that device is the CPU.
Batch upload(const Context& ctx, const Batch& host);

}  // namespace gradtile
