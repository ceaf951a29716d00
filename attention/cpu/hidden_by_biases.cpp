#include <gradtile/attention/internal/hidden_by_biases.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include <gradtile/attention/cpu/sequences.h>
#include <gradtile/core/internal/strided_rows.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cpu {
namespace {

using gradtile::cpu::for_rows;
using gradtile::cpu::last_stride;

/// Numbers that are not finite have the largest magnitudes among all bit patterns. Integers are compared,
/// because the compiler vectorises their maximum but not isfinite().
bool all_finite(const Context& ctx, const Tensor& x) {
    std::atomic<bool> finite = true;
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        using Bits = std::conditional_t<sizeof(T) == 8, std::int64_t,
                                        std::conditional_t<sizeof(T) == 4, std::int32_t, std::int16_t>>;
        constexpr Bits magnitude_bits = std::numeric_limits<Bits>::max();
        const auto infinity =
            std::bit_cast<Bits>(convert<T>(std::numeric_limits<Accumulator<T>>::infinity()));
        const auto scan = [&](const T* row, std::int64_t count, std::int64_t stride) {
            Bits largest = 0;
            for (std::int64_t i = 0; i < count; ++i) {
                Bits bits;
                std::memcpy(&bits, row + i * stride, sizeof bits);
                largest = std::max(largest, static_cast<Bits>(bits & magnitude_bits));
            }
            if (largest >= infinity) finite = false;
        };
        for_rows(
            ctx,
            [&](std::int64_t offset, std::int64_t count) {
                const T* const row = x.data<T>() + offset;
                // A constant stride lets the compiler vectorise the loop.
                if (last_stride(x) == 1) {
                    scan(row, count, 1);
                } else {
                    scan(row, count, last_stride(x));
                }
            },
            x);
    });
    return finite;
}

/// Whether a pair's biases add up to -inf, in the kernels' order and precision.
template <class A>
bool is_hidden(const ScoreRule<A>& rule, std::int64_t i, std::int64_t j) {
    A sum = 0;
    for (const BiasRows& bias : rule.biases)
        if (bias.data != nullptr)
            visit_floating(bias.dtype,
                           [&]<class T>(TypeTag<T>) { sum += convert<A>(bias.element<T>(i, j)); });
    return sum == -std::numeric_limits<A>::infinity();
}

/// Flags, [B, Sq, Hq] for q's rows and [B, Sk, Hkv] for the keys: 1 if a pair with this row or key is
/// visible.
struct Visible {
    std::vector<std::uint8_t> rows, keys;
};

template <class A>
Visible visible_pairs(const Context& ctx, const ResolvedOptions& options, const Tensor& q, const Tensor& k) {
    const std::int64_t heads = q.size(2), key_heads = k.size(2), queries = q.size(1), keys = k.size(1);
    Visible visible{std::vector<std::uint8_t>(static_cast<std::size_t>(q.size(0) * queries * heads)),
                    std::vector<std::uint8_t>(static_cast<std::size_t>(q.size(0) * keys * key_heads))};
    const std::vector<Sequence> sequences = sequences_of(options, q);
    const auto mark = [&](const Sequence& s, std::int64_t head) {
        const std::int64_t key_head = head / (heads / key_heads);
        const auto rule = options.scores.rule_of<A>(s.index, head, s.first_key);
        for (std::int64_t i = 0; i < s.mask.queries; ++i) {
            const IndexRange seen = s.mask.visible_keys(i);
            for (std::int64_t j = seen.begin; j < seen.end; ++j) {
                if (is_hidden(rule, i, j) || !options.row_ranges.sees(s.batch, head, i, s.first_key + j))
                    continue;
                const std::int64_t row = s.batch * queries + s.first_row + i,
                                   key = s.batch * keys + s.first_key + j;
                visible.rows[static_cast<std::size_t>(row * heads + head)] = 1;
                visible.keys[static_cast<std::size_t>(key * key_heads + key_head)] = 1;
            }
        }
    };
    parallel_for(ctx, std::ssize(sequences) * key_heads, [&](std::int64_t task) {
        const std::int64_t key_head = task % key_heads, group = heads / key_heads;
        for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
            mark(sequences[static_cast<std::size_t>(task / key_heads)], head);
    });
    return visible;
}

/// Returns a copy of x [B, S, H, D] with zeros where `visible` [B, S, H] is 0.
Tensor cleared(const Context& ctx, const Tensor& x, const std::vector<std::uint8_t>& visible) {
    const Tensor copied = empty_like(ctx, x);
    copy(ctx, copied, x);
    const std::size_t bytes = static_cast<std::size_t>(x.size(3)) * size_of(x.dtype());
    for (std::size_t n = 0; n < visible.size(); ++n)
        if (visible[n] == 0) std::fill_n(copied.raw_data() + n * bytes, bytes, std::byte{0});
    return copied;
}

}  // namespace

bool may_spread(const Context& ctx, const ResolvedOptions& options,
                std::initializer_list<Tensor> row_tensors) {
    if ((!options.scores.has_biases() && !options.row_ranges) || ctx.is_planning()) return false;
    return std::ranges::any_of(row_tensors, [&](const Tensor& x) { return !all_finite(ctx, x); });
}

Inputs without_hidden(const Context& ctx, const ResolvedOptions& options, const Inputs& inputs) {
    // The copies are not counted in memory plans, because calls with finite numbers make none.
    const Context own = ctx.with_allocator(system_allocator(ctx.device()));
    const auto& [saved, d_out] = inputs;
    const Visible visible = saved.q.dtype() == DType::f64
                                ? visible_pairs<double>(ctx, options, saved.q, saved.k)
                                : visible_pairs<float>(ctx, options, saved.q, saved.k);
    Inputs result = inputs;
    result.saved.q = cleared(own, saved.q, visible.rows);
    result.saved.k = cleared(own, saved.k, visible.keys);
    result.saved.v = cleared(own, saved.v, visible.keys);
    if (d_out.o.defined()) result.d_out.o = cleared(own, d_out.o, visible.rows);
    return result;
}

}  // namespace gradtile::attention::cpu
