#pragma once
/// The loss on the validation data during training.
#include <functional>
#include <optional>

#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/parallel/communicator.h>

namespace gradtile {

/// The tokens that evaluation reads, and the host batch that it reads them into.
struct EvaluationData {
    SequentialLoader loader;
    Batch batch;
};

/// Returns the mean loss over windows with the model's context length, in order. Each process evaluates every
/// communicator.size()-th batch.
///
/// After each round of one batch per process, every process calls `go_on` with the number of windows that all
/// processes together have evaluated. `go_on` must return the same value in every process. If it returns
/// false, the evaluation stops and the result is nullopt.
std::optional<double> mean_loss(const Context& ctx, const Transformer& model, EvaluationData& data,
                                const Communicator& communicator,
                                const std::function<bool(std::int64_t windows_done)>& go_on);

/// Copies the batch to ctx's device; returns `host` itself when that device is the CPU.
Batch upload(const Context& ctx, const Batch& host);

}  // namespace gradtile
