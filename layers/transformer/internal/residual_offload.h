#pragma once
/// INTERNAL. Moves what blocks save for backward to the host and back (ForwardOptions::offload).
#include <vector>

#include <gradtile/core/internal/offload_stream.h>
#include <gradtile/layers/transformer/transformer_block.h>

namespace gradtile {

/// A pass over blocks whose residuals move: while a block computes, those of its neighbour are on their way.
/// The last two blocks' stay, because the arena holds two blocks' values in any case. A residual is a tensor
/// that belongs to its block alone: neither the step's input, a table or a parameter, nor a stream that later
/// blocks read.
class ResidualOffload {
  public:
    /// `saved`: what each block saves. Does nothing if `stream` is null. The references must stay valid.
    ResidualOffload(const OffloadStream* stream, std::vector<TransformerBlock::Saved>& saved)
        : stream_(stream), saved_(saved) {}

    /// Call after each block's forward pass, in order. `x0`: the first block's input, if later blocks read
    /// it.
    void after_forward(const Context& ctx, std::size_t block, const Tensor& x0);
    /// Call before each block's backward pass, in reverse order.
    void before_backward(const Context& ctx, std::size_t block) const;

  private:
    bool moves(std::size_t block) const { return stream_ != nullptr && block + 2 < saved_.size(); }

    const OffloadStream* stream_;
    std::vector<TransformerBlock::Saved>& saved_;
    TransformerBlock::Saved leaving_;  // keeps the memory that copies to the host read
};

}  // namespace gradtile
