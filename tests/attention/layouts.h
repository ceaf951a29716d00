#pragma once
/// Views with one shape, in several memory layouts.
#include <limits>

#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::test {

enum class Layout : std::uint8_t {
    contiguous,
    heads_first,
    transposed,
    every_second,
    wider_rows,         ///< at addresses not divisible by 16 bytes
    aligned_wider_rows  ///< at addresses divisible by 16 bytes
};
inline constexpr Layout layouts[] = {Layout::contiguous,   Layout::heads_first, Layout::transposed,
                                     Layout::every_second, Layout::wider_rows,  Layout::aligned_wider_rows};

/// A [B, S, H, D] view, and the memory around it, which is filled with NaN.
struct Placed {
    Tensor memory, view;

    Placed() = default;
    Placed(const Context& ctx, const Shape& shape, DType dtype, Layout layout) {
        const std::int64_t b = shape[0], s = shape[1], h = shape[2], d = shape[3];
        const auto allocate = [&](const Shape& full_shape) {
            memory = empty(ctx, full_shape, dtype);
            fill(ctx, memory, std::numeric_limits<double>::quiet_NaN());
            return memory;
        };
        switch (layout) {
            case Layout::contiguous:
                view = allocate({b, s, h, d});
                break;
            case Layout::heads_first:
                view = allocate({b, h, s, d}).transpose(1, 2);
                break;
            case Layout::transposed:
                view = allocate({b, h, d, s}).transpose(2, 3).transpose(1, 2);
                break;
            case Layout::every_second:
                view = allocate({b, s, h, d, 2}).select(4, 1);
                break;
            case Layout::wider_rows:
                view = allocate({b, s, h, d + 3}).slice(3, 1, d);
                break;
            case Layout::aligned_wider_rows:
                view = allocate({b, s, h, (d + 7) / 8 * 8 + 16}).slice(3, 8, d);
                break;
        }
    }
};

}  // namespace gradtile::attention::test
