#include <gradtile/train/shared_sequences.h>

#include <numeric>
#include <vector>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {

SharedSequences::SharedSequences(const Context& ctx, const Communicator& communicator, std::int64_t processes,
                                 std::int64_t context)
    : ring_(communicator.ring(ctx, static_cast<int>(processes))) {
    groups_ = communicator.size() / ring_->size();
    group_ = communicator.rank() / ring_->size();
    if (ring_->size() == 1) return;
    std::vector<std::int32_t> positions(static_cast<std::size_t>(context));
    std::iota(positions.begin(), positions.end(), 0);
    positions_ = from_host(ctx, positions, {context});
}

std::int64_t SharedSequences::row_length(std::int64_t longest) const {
    return ring_->size() == 1 ? longest : rounded_up(longest, 2 * ring_->size());
}

Batch SharedSequences::part_of(const Context& ctx, const Batch& full) const {
    if (ring_->size() == 1) return full;
    check(!full.documents, "shared sequences: the batch has documents; expected whole causal sequences");
    const std::int64_t rows = full.tokens.size(0), length = full.tokens.size(1);
    check(length <= positions_.size(0), "shared sequences: rows of ", length, " tokens; expected at most ",
          positions_.size(0));
    const auto chunks = attention::zigzag_chunks(length, ring_->rank(), ring_->size());
    const std::int64_t chunk = length / (2 * ring_->size());
    const auto part = [&](const Tensor& x) {
        const Tensor own = empty(ctx, {rows, 2 * chunk}, x.dtype());
        for (std::size_t i = 0; i < 2; ++i)
            copy(ctx, own.slice(1, static_cast<std::int64_t>(i) * chunk, chunk),
                 x.slice(1, chunks[i], chunk));
        return own;
    };
    const Tensor positions = positions_.slice(0, 0, length).reshape({1, length}).expand({rows, length});
    return {part(full.tokens), part(full.targets), {.positions = part(positions), .ring = ring_.get()}};
}

}  // namespace gradtile
