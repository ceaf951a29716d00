#include <gradtile/train/shared_sequences.h>

#include <algorithm>
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
    check(!full.documents.are_sequences(),
          "shared sequences: the batch has document offsets; expected row ranges");
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
    const Tensor positions = full.documents
                                 ? full.documents.positions
                                 : positions_.slice(0, 0, length).reshape({1, length}).expand({rows, length});
    return {part(full.tokens),
            part(full.targets),
            {.positions = part(positions), .row_ranges = full.documents.row_ranges, .ring = ring_.get()}};
}

void SharedSequences::write_row_ranges(std::span<const std::int32_t> offsets, std::int64_t row_length,
                                       std::span<std::int32_t> ranges) const {
    const std::int64_t ranks = processes(), rows = offsets.back() / row_length, part = row_length / ranks;
    check(std::ssize(ranges) == 4 * rows * row_length, "shared sequences: memory for ", ranges.size(),
          " numbers of row ranges; expected ", 4 * rows * row_length);
    const std::int64_t chunk = part / 2;
    for (std::size_t d = 0; d + 1 < offsets.size(); ++d)
        for (std::int64_t i = offsets[d]; i < offsets[d + 1]; ++i) {
            const std::int64_t row = i / row_length, key = i % row_length, n = key / chunk;
            const bool is_in_second_chunk = n >= ranks;
            const std::int64_t source = is_in_second_chunk ? 2 * ranks - 1 - n : n;
            const std::int64_t place =
                (source * rows + row) * part + (is_in_second_chunk ? chunk : 0) + key % chunk;
            const auto numbers = attention::zigzag_row_ranges(key, offsets[d + 1] - row * row_length,
                                                              row_length, ring_->rank(), ring_->size());
            std::ranges::copy(numbers, ranges.begin() + 4 * place);
        }
}

Batch SharedSequences::with_row_ranges(const Context& ctx, const Batch& host) const {
    if (processes() == 1 || !host.documents.are_sequences()) return host;
    const std::int64_t rows = host.tokens.size(0), length = host.tokens.size(1);
    Batch batch = host;
    batch.documents.offsets = {};
    batch.documents.row_ranges = empty(ctx, {processes() * rows, 1, length / processes(), 4}, DType::i32);
    if (ctx.is_planning()) return batch;
    const auto numbers = [](const Tensor& x) {
        return std::span(x.data<std::int32_t>(), static_cast<std::size_t>(x.elements()));
    };
    write_row_ranges(numbers(host.documents.offsets), length, numbers(batch.documents.row_ranges));
    return batch;
}

}  // namespace gradtile
