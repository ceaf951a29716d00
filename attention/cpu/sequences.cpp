#include <gradtile/attention/cpu/sequences.h>

#include <algorithm>
#include <limits>
#include <span>

#include <gradtile/attention/internal/seen_part.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cpu {
namespace {

/// Returns the packed sequences' offsets in a tensor of `length` rows or keys. Throws Error if an offset is
/// wrong.
std::span<const std::int32_t> checked_offsets(const char* name, const Tensor& x, std::int64_t length) {
    const std::span offsets(x.data<std::int32_t>(), static_cast<std::size_t>(x.size(0)));
    check(offsets[0] == 0, "attention: ", name, "[0] is ", offsets[0], "; expected 0");
    for (std::size_t i = 1; i < offsets.size(); ++i)
        check(offsets[i] >= offsets[i - 1], "attention: ", name, '[', i, "] is ", offsets[i],
              "; expected at least ", offsets[i - 1], ", the offset before it");
    check(offsets.back() <= length, "attention: ", name, '[', offsets.size() - 1, "] is ", offsets.back(),
          "; expected at most ", length, ", the length of the tensor");
    return offsets;
}

Tensor after(const Tensor& offsets, const Tensor& x) {
    if (!offsets.defined()) return x.slice(1, x.size(1), 0);
    const std::int64_t end = offsets.data<std::int32_t>()[offsets.size(0) - 1];
    return x.slice(1, end, x.size(1) - end);
}

}  // namespace

std::vector<Sequence> sequences_of(const ResolvedOptions& options, const Tensor& q) {
    std::vector<Sequence> sequences;
    const PackedSequences& packed = options.packed;
    if (!packed) {
        for (std::int64_t b = 0; b < q.size(0); ++b)
            sequences.push_back({.index = b, .mask = options.mask, .batch = b});
        return sequences;
    }
    const auto rows = checked_offsets("cumulative_q", packed.q_offsets, options.mask.queries);
    const auto keys = checked_offsets("cumulative_k", packed.k_offsets, options.mask.keys);
    for (std::size_t s = 0; s + 1 < rows.size(); ++s) {
        Mask mask = options.mask;
        mask.queries = rows[s + 1] - rows[s];
        mask.keys = keys[s + 1] - keys[s];
        check(mask.queries <= packed.max_queries, "attention: sequence ", s, " has ", mask.queries,
              " rows; expected at most ", packed.max_queries, ", the rows of a bias");
        check(mask.keys <= packed.max_keys, "attention: sequence ", s, " has ", mask.keys,
              " keys; expected at most ", packed.max_keys, ", the keys of a bias");
        mask.offset = packed.top_left ? 0 : mask.keys - mask.queries;
        sequences.push_back({.index = static_cast<std::int64_t>(s),
                             .mask = mask,
                             .first_row = rows[s],
                             .first_key = keys[s]});
    }
    const auto work = [](const Sequence& s) { return s.mask.queries * s.mask.keys; };
    std::ranges::stable_sort(sequences, std::ranges::greater(), work);
    return sequences;
}

ResolvedOptions options_of(const ResolvedOptions& options, const Sequence& sequence) {
    ResolvedOptions own = options;
    own.packed = {};
    own.mask = sequence.mask;
    if (own.row_ranges) own.row_ranges.data += sequence.first_key * own.row_ranges.key_stride;
    own.scores.offset = sequence.mask.offset;
    own.scores.dropout.first_sample += sequence.index;
    if (own.scores.alibi_slopes != nullptr)
        own.scores.alibi_slopes += sequence.index * own.scores.alibi_batch_stride;
    for (ScoreOptions::Bias& bias : own.scores.biases) {
        bias.data = bias.rows_of(sequence.index, 0, sequence.first_key).data;
        bias.strides[0] = 0;
        bias.batch_divisor = 1;
        bias.has_packed_keys = false;
    }
    return own;
}

Tensor rows_after_last(const PackedSequences& packed, const Tensor& x) {
    return after(packed.q_offsets, x);
}
Tensor keys_after_last(const PackedSequences& packed, const Tensor& x) {
    return after(packed.k_offsets, x);
}

void clear_lse_after_last(const Context& ctx, const PackedSequences& packed, const Saved& saved) {
    fill(ctx, rows_after_last(packed, saved.lse.transpose(1, 2)), -std::numeric_limits<double>::infinity());
    if (saved.lse_remainder.defined())
        fill(ctx, rows_after_last(packed, saved.lse_remainder.transpose(1, 2)), 0);
}

void clear_unseen(const Context& ctx, const ResolvedOptions& options, RowKind kind, const Tensor& x) {
    if (ctx.is_planning()) return;
    const auto clear = [&](std::int64_t batch, std::int64_t begin, std::int64_t end) {
        fill(ctx, x.slice(0, batch, 1).slice(1, begin, end - begin), 0);
    };
    for (const Sequence& s : sequences_of(options, x)) {
        const SeenRanges seen = seen_ranges(s.mask);
        const bool is_query = kind == RowKind::query;
        const IndexRange kept = is_query ? seen.rows : seen.keys;
        const std::int64_t first = is_query ? s.first_row : s.first_key;
        clear(s.batch, first, first + kept.begin);
        clear(s.batch, first + kept.end, first + (is_query ? s.mask.queries : s.mask.keys));
    }
}

}  // namespace gradtile::attention::cpu
