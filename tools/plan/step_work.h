#pragma once
/// The work of a training step on one GPU, counted from the model's shapes: floating-point operations in
/// matrix products and attention, bytes that memory-bound passes read and write, and the block count, for the
/// fixed cost per block. docs/parallel_cost_model.md derives the counts.
#include <cstdint>

#include <gradtile/core/dtype.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

struct Work {
    double product_flops = 0;
    double attention_flops = 0;
    double bytes = 0;
    double blocks = 0;  ///< one block's forward and backward pass count as 1 together

    Work& operator+=(const Work& other);
    friend Work operator+(Work a, const Work& b) { return a += b; }
    friend Work operator*(double times, const Work& work);
};

/// The parts of a micro-batch's forward and backward pass, in the order they run, and an update.
struct StepWork {
    Work embed_forward;
    Work block_forward;   ///< work per block
    Work head;            ///< loss, its gradient and the head's weight gradient, computed in one forward pass
    Work block_backward;  ///< work per block, including recomputation
    Work embed_backward;
    /// Bytes that gradient norm and update read and write per parameter element. step_work() counts AdamW
    /// with float32 moments.
    double update_bytes_of_element = 0;
    /// Bytes of an element's offloaded gradient, state and value that gradient norm and update send over the
    /// bus.
    double host_bytes_of_element = 0;
    /// Bytes of a block's offloaded residuals, which leave in the forward pass and return in the backward
    /// pass: the mean over all blocks.
    double residual_bytes_of_block = 0;
    /// Bytes of a block's offloaded gradients, which leave in the backward pass.
    double gradient_bytes_of_block = 0;
    /// Bytes of a block's offloaded weights, which both passes bring: the mean over all blocks.
    double weight_bytes_of_block = 0;
};

/// Returns the work for `micro_batch` sequences of model.context tokens. The vocabulary must be set.
StepWork step_work(const ModelConfig& model, DType dtype, std::int64_t micro_batch,
                   Recompute recompute = Recompute::none);

/// Returns the work of a generation step: a token for each of `texts` texts, whose caches hold as many tokens
/// as a token sees on average in a text of model.context tokens. Every weight is read once.
Work generation_work(const ModelConfig& model, DType dtype, std::int64_t texts);

}  // namespace gradtile
