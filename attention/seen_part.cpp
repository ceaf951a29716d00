#include <gradtile/attention/internal/seen_part.h>

#include <algorithm>
#include <limits>

namespace gradtile::attention {
namespace {

/// How a call treats the rows and keys that the mask leaves unseen.
struct Treatment {
    SeenRanges ranges;                              ///< kernels get views of these
    bool clears_keys = false, clears_rows = false;  ///< kernels get copies with zeros
};

Treatment treatment_of(const ResolvedOptions& options) {
    const Mask& mask = options.mask;
    Treatment t{.ranges = {{0, mask.queries}, {0, mask.keys}}};
    if (options.packed) {
        // If rows and keys have the same offsets, every row sees the key at its own position.
        const bool same_lengths = options.packed.q_offsets.raw_data() == options.packed.k_offsets.raw_data();
        const bool top_left = options.packed.top_left;
        t.clears_keys = !same_lengths && (mask.left >= 0 || (top_left && mask.right >= 0));
        t.clears_rows = !same_lengths && (mask.right >= 0 || (top_left && mask.left >= 0));
        return t;
    }
    const SeenRanges seen = seen_ranges(mask);
    // Dropout counts rows and keys from those of the whole call. A row that sees no key may see a sink.
    if (options.scores.drops()) {
        t.clears_keys = seen.keys.end - seen.keys.begin < mask.keys;
    } else {
        t.ranges.keys = seen.keys;
    }
    if (options.scores.drops() || options.scores.sink != nullptr) {
        t.clears_rows = seen.rows.end - seen.rows.begin < mask.queries;
    } else {
        t.ranges.rows = seen.rows;
    }
    return t;
}

Tensor slice(const Tensor& x, int axis, IndexRange range) {
    if (!x.defined() || (range.begin == 0 && range.end == x.size(axis))) return x;
    return x.slice(axis, range.begin, range.end - range.begin);
}
/// Whether a bias's gradient is a sum over an axis.
bool is_summed(const Tensor& gradient, int axis) {
    return gradient.size(axis) == 1 || gradient.stride(axis) == 0;
}
Tensor slice_bias(const Tensor& x, int axis, IndexRange range) {
    return x.defined() && x.size(axis) == 1 ? x : slice(x, axis, range);
}
/// Sets x to `value` outside the range.
void fill_outside(const Context& ctx, const Tensor& x, int axis, IndexRange range, double value) {
    fill(ctx, x.slice(axis, 0, range.begin), value);
    fill(ctx, x.slice(axis, range.end, x.size(axis) - range.end), value);
}

Tensor copy_or_view(const Context& ctx, const Tensor& x, bool copies) {
    return copies ? empty_like(ctx, x) : x;
}
void copy_seen(const Context& ctx, const ResolvedOptions& options, RowKind kind, const Tensor& to,
               const Tensor& from) {
    copy(ctx, to, from);
    (ctx.device().is_cpu() ? cpu::clear_unseen : cuda::clear_unseen)(ctx, options, kind, to);
}

ResolvedOptions options_for(const ResolvedOptions& options, const SeenRanges& ranges) {
    ResolvedOptions own = options;
    own.mask.queries = ranges.rows.end - ranges.rows.begin;
    own.mask.keys = ranges.keys.end - ranges.keys.begin;
    own.mask.offset += ranges.rows.begin - ranges.keys.begin;
    own.scores.offset = own.mask.offset;
    for (ScoreOptions::Bias& bias : own.scores.biases)
        if (bias.data != nullptr)
            bias.data += (ranges.rows.begin * bias.strides[2] + ranges.keys.begin * bias.strides[3]) *
                         static_cast<std::int64_t>(size_of(bias.dtype));
    return own;
}

}  // namespace

SeenForward::SeenForward(const Context& ctx, const ResolvedOptions& options, const Saved& saved)
    : all_(saved) {
    const Treatment t = treatment_of(options);
    ranges_ = t.ranges;
    options_ = options_for(options, ranges_);
    hides_keys_ = t.clears_keys;
    seen_ = {.q = slice(saved.q, 1, ranges_.rows),
             .k = copy_or_view(ctx, slice(saved.k, 1, ranges_.keys), hides_keys_),
             .v = copy_or_view(ctx, slice(saved.v, 1, ranges_.keys), hides_keys_),
             .o = slice(saved.o, 1, ranges_.rows),
             .lse = slice(saved.lse, 2, ranges_.rows),
             .lse_remainder = slice(saved.lse_remainder, 2, ranges_.rows),
             .row_max = slice(saved.row_max, 2, ranges_.rows),
             .row_sum = slice(saved.row_sum, 2, ranges_.rows)};
    for (Tensor* x : {&seen_.lse, &seen_.lse_remainder, &seen_.row_max, &seen_.row_sum})
        if (x->defined() && !x->is_contiguous()) *x = empty(ctx, x->shape(), x->dtype());
}

void SeenForward::load(const Context& ctx) const {
    if (!hides_keys_) return;
    copy_seen(ctx, options_, RowKind::key, seen_.k, slice(all_.k, 1, ranges_.keys));
    copy_seen(ctx, options_, RowKind::key, seen_.v, slice(all_.v, 1, ranges_.keys));
}

void SeenForward::store(const Context& ctx) const {
    if (ranges_.rows.end - ranges_.rows.begin == all_.q.size(1)) return;
    constexpr double infinity = std::numeric_limits<double>::infinity();
    fill_outside(ctx, all_.o, 1, ranges_.rows, 0);
    fill_outside(ctx, all_.lse, 2, ranges_.rows, -infinity);
    copy(ctx, slice(all_.lse, 2, ranges_.rows), seen_.lse);
    for (const auto& [all, seen, unseen] : {std::tuple{&all_.lse_remainder, &seen_.lse_remainder, 0.0},
                                            std::tuple{&all_.row_max, &seen_.row_max, -infinity},
                                            std::tuple{&all_.row_sum, &seen_.row_sum, 0.0}})
        if (all->defined()) {
            fill_outside(ctx, *all, 2, ranges_.rows, unseen);
            copy(ctx, slice(*all, 2, ranges_.rows), *seen);
        }
}

SeenBackward::SeenBackward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                           const OutputGradients& d_out, const Gradients& into)
    : all_(saved), d_out_(d_out), into_(into) {
    const Treatment t = treatment_of(options);
    ranges_ = t.ranges;
    options_ = options_for(options, ranges_);
    hides_keys_ = t.clears_keys;
    hides_rows_ = t.clears_rows;
    seen_ = {.q = copy_or_view(ctx, slice(saved.q, 1, ranges_.rows), hides_rows_),
             .k = copy_or_view(ctx, slice(saved.k, 1, ranges_.keys), hides_keys_),
             .v = copy_or_view(ctx, slice(saved.v, 1, ranges_.keys), hides_keys_),
             .o = slice(saved.o, 1, ranges_.rows),
             .lse = {}};
    const std::array numbers = {&saved.lse, &saved.lse_remainder, &saved.row_max, &saved.row_sum};
    const std::array seen_numbers = {&seen_.lse, &seen_.lse_remainder, &seen_.row_max, &seen_.row_sum};
    for (std::size_t n = 0; n < numbers.size(); ++n) {
        if (!numbers[n]->defined()) continue;
        row_numbers_[n].emplace(contiguous(ctx, slice(*numbers[n], 2, ranges_.rows)));
        *seen_numbers[n] = row_numbers_[n]->tensor();
    }
    seen_d_out_ = {.o = copy_or_view(ctx, slice(d_out.o, 1, ranges_.rows), hides_rows_),
                   .lse = slice(d_out.lse, 2, ranges_.rows)};
    seen_into_ = {.q = slice(into.q, 1, ranges_.rows),
                  .k = slice(into.k, 1, ranges_.keys),
                  .v = slice(into.v, 1, ranges_.keys),
                  .sink = into.sink};
    for (std::size_t n = 0; n < max_biases; ++n)
        seen_into_.biases[n] = slice_bias(slice_bias(into.biases[n], 2, ranges_.rows), 3, ranges_.keys);
}

void SeenBackward::load(const Context& ctx) const {
    for (const std::optional<Readable>& numbers : row_numbers_)
        if (numbers) numbers->load(ctx);
    if (hides_rows_) {
        copy_seen(ctx, options_, RowKind::query, seen_.q, slice(all_.q, 1, ranges_.rows));
        copy_seen(ctx, options_, RowKind::query, seen_d_out_.o, slice(d_out_.o, 1, ranges_.rows));
    }
    if (hides_keys_) {
        copy_seen(ctx, options_, RowKind::key, seen_.k, slice(all_.k, 1, ranges_.keys));
        copy_seen(ctx, options_, RowKind::key, seen_.v, slice(all_.v, 1, ranges_.keys));
    }
}

void SeenBackward::store(const Context& ctx) const {
    fill_outside(ctx, into_.q, 1, ranges_.rows, 0);
    fill_outside(ctx, into_.k, 1, ranges_.keys, 0);
    fill_outside(ctx, into_.v, 1, ranges_.keys, 0);
    for (const Tensor& gradient : into_.biases) {
        if (!gradient.defined()) continue;
        if (!is_summed(gradient, 2)) fill_outside(ctx, gradient, 2, ranges_.rows, 0);
        if (!is_summed(gradient, 3)) fill_outside(ctx, gradient, 3, ranges_.keys, 0);
    }
}

}  // namespace gradtile::attention
