#pragma once
/// Parallel CPU loops over tensors with any strides. A loop processes element runs along the last axis.
#include <algorithm>

#include <gradtile/core/tensor.h>

namespace gradtile::cpu {

/// Elements per parallel block. The number is fixed, so that blocks do not depend on the thread count.
inline constexpr std::int64_t elements_per_block = 1 << 14;

/// Element offset for the index-th element in row-major order.
inline std::int64_t offset_of(const Tensor& x, std::int64_t index) {
    std::int64_t offset = 0;
    for (int axis = x.rank() - 1; axis >= 0; --axis) {
        offset += index % x.size(axis) * x.stride(axis);
        index /= x.size(axis);
    }
    return offset;
}

/// Distance between neighbouring elements in a for_rows() run.
inline std::int64_t last_stride(const Tensor& x) {
    return x.rank() == 0 || x.is_contiguous() ? 1 : x.stride(-1);
}

/// Covers equally shaped tensors with runs of `count` elements that are last_stride() apart, and calls
/// row(offset in each tensor.., count) for each run. If all tensors are contiguous, a run spans several rows.
template <class Row, class... Others>
void for_rows(const Context& ctx, Row&& row, const Tensor& first, const Others&... others) {
    const std::int64_t count = first.elements();
    if (count == 0) return;
    if ((first.is_contiguous() && ... && others.is_contiguous())) {
        parallel_ranges(ctx, count, elements_per_block, [&](std::int64_t begin, std::int64_t end) {
            row(begin, (static_cast<void>(others), begin)..., end - begin);
        });
        return;
    }
    const std::int64_t last = first.rank() == 0 ? 1 : first.size(-1);
    parallel_ranges(ctx, count / last, std::max<std::int64_t>(1, elements_per_block / last),
                    [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t r = begin; r < end; ++r)
                            row(offset_of(first, r * last), offset_of(others, r * last)..., last);
                    });
}

}  // namespace gradtile::cpu
