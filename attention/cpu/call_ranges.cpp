#include <gradtile/attention/cpu/call_ranges.h>

#include <algorithm>
#include <limits>

#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cpu {
namespace {

/// Each sequence's keys begin at a multiple of this, and are padded to one: kernels read whole vectors and
/// blocks, of 64 keys at most.
constexpr std::int64_t padding = 64;

std::int64_t padded_keys(const ResolvedOptions& options) {
    return (options.mask.keys / padding + options.packed.count + 1) * padding;
}
std::int64_t first_copy(const Sequence& s, bool is_packed) {
    return is_packed ? (s.first_key / padding + s.index) * padding : 0;
}

}  // namespace

CallRanges::CallRanges(const Context& ctx, const ResolvedOptions& options, const Tensor& q)
    : from_(options.row_ranges), is_packed_(static_cast<bool>(options.packed)), heads_(q.size(2)) {
    if (from_)
        copies_ = empty(ctx,
                        {from_.batch_stride == 0 ? 1 : q.size(0), from_.head_stride == 0 ? 1 : heads_, 4,
                         padded_keys(options)},
                        DType::i32);
}

std::vector<KeyRanges> CallRanges::load(const Context& ctx, const std::vector<Sequence>& sequences) const {
    std::vector<KeyRanges> ranges;
    if (!from_) return ranges;
    const std::int64_t batches = copies_.size(0), heads = copies_.size(1), keys = copies_.size(3);
    const auto copy_of = [&](const Sequence& s, std::int64_t head) {
        return copies_.data<std::int32_t>() +
               (std::min(s.batch, batches - 1) * heads + std::min(head, heads - 1)) * 4 * keys +
               first_copy(s, is_packed_);
    };
    parallel_for(ctx, std::ssize(sequences) * heads, [&](std::int64_t task) {
        const Sequence& s = sequences[static_cast<std::size_t>(task / heads)];
        const std::int64_t head = task % heads;
        if (!is_packed_ && s.batch >= batches) return;  // shares the first batch's copy
        std::int32_t* const to = copy_of(s, head);
        const std::int64_t end = ceil_div(s.mask.keys, padding) * padding;
        for (std::int64_t j = 0; j < end; ++j)
            for (int range = 0; range < 2; ++range) {
                const std::int32_t* const r =
                    j < s.mask.keys ? from_.of_key(s.batch, head, s.first_key + j) + 2 * range : nullptr;
                const bool is_empty = r == nullptr || r[1] <= r[0];
                to[range * keys + j] = is_empty ? std::numeric_limits<std::int32_t>::max() : r[0];
                to[(2 + range) * keys + j] = is_empty ? std::numeric_limits<std::int32_t>::min() : r[1];
            }
    });
    for (const Sequence& s : sequences)
        for (std::int64_t head = 0; head < heads_; ++head) {
            const std::int32_t* const copy = copy_of(s, head);
            ranges.push_back({{copy, copy + keys}, {copy + 2 * keys, copy + 3 * keys}});
        }
    return ranges;
}

}  // namespace gradtile::attention::cpu

namespace gradtile::attention {

VisibleBlocks visible_blocks(const ResolvedOptions& options, const Tensor& q) {
    constexpr std::int64_t size = 128;
    const RowRanges& ranges = options.row_ranges;
    VisibleBlocks blocks;
    const auto count = [&](const cpu::Sequence& s, std::int64_t head) {
        const std::int64_t row_blocks = ceil_div(s.mask.queries, size);
        blocks.all += row_blocks * ceil_div(s.mask.keys, size);
        std::vector<bool> seen(static_cast<std::size_t>(row_blocks));
        const auto see = [&](IndexRange rows, IndexRange part) {
            const std::int64_t begin = std::max(rows.begin, part.begin), end = std::min(rows.end, part.end);
            for (std::int64_t block = begin / size; begin < end && block * size < end; ++block)
                seen[static_cast<std::size_t>(block)] = true;
        };
        for (std::int64_t j = 0; j < s.mask.keys; ++j) {
            const IndexRange rows = s.mask.seeing_rows({j, j + 1});
            if (ranges) {
                const std::int32_t* const r = ranges.of_key(s.batch, head, s.first_key + j);
                see(rows, {r[0], r[1]});
                see(rows, {r[2], r[3]});
            } else {
                see(rows, rows);
            }
            if ((j + 1) % size != 0 && j + 1 < s.mask.keys) continue;
            blocks.visible += std::ranges::count(seen, true);
            seen.assign(seen.size(), false);
        }
    };
    for (const cpu::Sequence& s : cpu::sequences_of(options, q))
        for (std::int64_t head = 0; head < q.size(2); ++head) count(s, head);
    return blocks;
}

}  // namespace gradtile::attention
