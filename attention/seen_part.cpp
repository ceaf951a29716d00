#include <gradtile/attention/internal/seen_part.h>

namespace gradtile::attention {
namespace {

std::int64_t length(IndexRange range) {
    return range.end - range.begin;
}

/// If rows and keys in packed sequences have the same offsets, every row sees the key at its own position.
bool has_same_lengths(const PackedSequences& packed) {
    return packed.q_offsets.raw_data() == packed.k_offsets.raw_data();
}

bool has_unseen_keys(const ResolvedOptions& options) {
    const Mask& mask = options.mask;
    if (!options.packed) return length(seen_ranges(mask).keys) < mask.keys;
    return !has_same_lengths(options.packed) &&
           (mask.left >= 0 || (options.packed.top_left && mask.right >= 0));
}
bool has_unseen_rows(const ResolvedOptions& options) {
    const Mask& mask = options.mask;
    if (!options.packed) return length(seen_ranges(mask).rows) < mask.queries;
    // Without a mask only the rows of a sequence without keys see none. Only a sink's gradient reads them.
    return !has_same_lengths(options.packed) &&
           (mask.right >= 0 || (options.packed.top_left && mask.left >= 0) || options.scores.sink != nullptr);
}

/// The keys that kernels get: the seen ones, or all keys where skipping unseen ones would change the results.
/// Dropout counts all keys in the call.
IndexRange kernel_keys(const ResolvedOptions& options) {
    if (options.packed || options.scores.drops()) return {0, options.mask.keys};
    return seen_ranges(options.mask).keys;
}

Tensor slice(const Tensor& x, int axis, IndexRange range) {
    return length(range) == x.size(axis) ? x : x.slice(axis, range.begin, length(range));
}
/// Sets x to 0 outside the range.
void clear_outside(const Context& ctx, const Tensor& x, int axis, IndexRange range) {
    fill(ctx, x.slice(axis, 0, range.begin), 0);
    fill(ctx, x.slice(axis, range.end, x.size(axis) - range.end), 0);
}

/// Whether a bias's gradient [.., keys] is the same for all keys.
bool is_broadcast(const Tensor& x) {
    return x.size(3) == 1 || x.stride(3) == 0;
}

Tensor view_or_copy(const Context& ctx, const Tensor& x, bool copies) {
    return copies ? empty_like(ctx, x) : x;
}
void copy_seen(const Context& ctx, const ResolvedOptions& options, RowKind kind, const Tensor& to,
               const Tensor& from) {
    copy(ctx, to, from);
    (ctx.device().is_cpu() ? cpu::clear_unseen : cuda::clear_unseen)(ctx, options, kind, to);
}

ResolvedOptions options_for(const ResolvedOptions& options, IndexRange keys) {
    ResolvedOptions own = options;
    own.mask.keys = length(keys);
    own.mask.offset -= keys.begin;
    own.scores.offset = own.mask.offset;
    if (own.row_ranges) own.row_ranges.data += keys.begin * own.row_ranges.key_stride;
    for (ScoreOptions::Bias& bias : own.scores.biases)
        if (bias.data != nullptr)
            bias.data += keys.begin * bias.strides[3] * static_cast<std::int64_t>(size_of(bias.dtype));
    return own;
}

}  // namespace

SeenForward::SeenForward(const Context& ctx, const ResolvedOptions& options, const Saved& saved)
    : options_(options_for(options, kernel_keys(options))),
      keys_(kernel_keys(options)),
      all_(saved),
      seen_(saved),
      clears_keys_(has_unseen_keys(options_)) {
    seen_.k = view_or_copy(ctx, slice(saved.k, 1, keys_), clears_keys_);
    seen_.v = view_or_copy(ctx, slice(saved.v, 1, keys_), clears_keys_);
}

void SeenForward::load(const Context& ctx) const {
    if (!clears_keys_ || ctx.is_planning()) return;
    copy_seen(ctx, options_, RowKind::key, seen_.k, slice(all_.k, 1, keys_));
    copy_seen(ctx, options_, RowKind::key, seen_.v, slice(all_.v, 1, keys_));
}

SeenBackward::SeenBackward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                           const OutputGradients& d_out, const Gradients& into)
    : forward_(ctx, options, saved),
      keys_(kernel_keys(options)),
      all_(saved),
      seen_(forward_.saved()),
      d_out_(d_out),
      seen_d_out_(d_out),
      into_(into),
      seen_into_(into),
      clears_rows_(has_unseen_rows(options)) {
    seen_.q = view_or_copy(ctx, saved.q, clears_rows_);
    seen_d_out_.o = view_or_copy(ctx, d_out.o, clears_rows_);
    const std::array numbers = {&seen_.lse, &seen_.lse_remainder, &seen_.row_max, &seen_.row_sum};
    for (std::size_t n = 0; n < numbers.size(); ++n) {
        if (!numbers[n]->defined()) continue;
        row_numbers_[n].emplace(contiguous(ctx, *numbers[n]));
        *numbers[n] = row_numbers_[n]->tensor();
    }
    seen_into_.k = slice(into.k, 1, keys_);
    seen_into_.v = slice(into.v, 1, keys_);
    for (Tensor& gradient : seen_into_.biases)
        if (gradient.defined() && gradient.size(3) != 1 && !options.packed)
            gradient = slice(gradient, 3, keys_);
}

void SeenBackward::load(const Context& ctx) const {
    if (ctx.is_planning()) return;
    forward_.load(ctx);
    for (const std::optional<Readable>& numbers : row_numbers_)
        if (numbers) numbers->load(ctx);
    if (!clears_rows_) return;
    copy_seen(ctx, options(), RowKind::query, seen_.q, all_.q);
    copy_seen(ctx, options(), RowKind::query, seen_d_out_.o, d_out_.o);
}

void SeenBackward::store(const Context& ctx) const {
    if (ctx.is_planning()) return;
    clear_outside(ctx, into_.k, 1, keys_);
    clear_outside(ctx, into_.v, 1, keys_);
    if (options().packed) return;
    for (const Tensor& gradient : into_.biases)
        if (gradient.defined() && !is_broadcast(gradient)) clear_outside(ctx, gradient, 3, keys_);
}

}  // namespace gradtile::attention
