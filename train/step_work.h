#pragma once
/// What a training step does on one GPU, counted from the model's shapes, in the units that take its time:
/// floating-point operations of matrix products and of attention, bytes that memory-bound passes read and
/// write, and blocks, for what a block's kernels cost however small they are.
/// docs/parallel_cost_model.md derives the counts.
#include <cstdint>

#include <gradtile/core/dtype.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

struct Work {
    double product_flops = 0;
    double attention_flops = 0;
    double bytes = 0;
    double blocks = 0;  ///< forward and backward of one block: 1

    Work& operator+=(const Work& other);
    friend Work operator+(Work a, const Work& b) { return a += b; }
    friend Work operator*(double times, const Work& work);
};

/// The parts of a micro-batch's forward and backward pass, in the order they run, and an update.
struct StepWork {
    Work embed_forward;
    Work block_forward;   ///< of each block
    Work head;            ///< loss, its gradient and the head's weight gradient: one pass, forward
    Work block_backward;  ///< of each block, with what it computes again
    Work embed_backward;
    /// Gradient norm and AdamW, for each element of the parameters.
    double update_bytes_of_element = 0;
};

/// Of `micro_batch` sequences of model.context tokens. The vocabulary must be set.
StepWork step_work(const ModelConfig& model, DType dtype, std::int64_t micro_batch);

}  // namespace gradtile
