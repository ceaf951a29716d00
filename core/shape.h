#pragma once
/// Shapes and strides with up to six axes. Strides are in elements; the default order is row-major.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>

#include <gradtile/core/check.h>

namespace gradtile {

/// Axis lengths or strides, without heap memory and cheap to copy.
class Shape {
  public:
    static constexpr int max_rank = 6;

    Shape() = default;
    Shape(std::initializer_list<std::int64_t> axes) : Shape(std::span(axes.begin(), axes.size())) {}
    explicit Shape(std::span<const std::int64_t> axes) : rank_(static_cast<int>(axes.size())) {
        check(axes.size() <= max_rank, "shape: ", axes.size(), " axes; at most ", max_rank, " are supported");
        for (int i = 0; i < rank_; ++i)
            axes_[static_cast<std::size_t>(i)] = axes[static_cast<std::size_t>(i)];
    }

    int rank() const { return rank_; }
    /// Axis i; negative i counts from the last axis.
    std::int64_t operator[](int i) const { return axes_[index(i)]; }
    std::int64_t& operator[](int i) { return axes_[index(i)]; }
    const std::int64_t* begin() const { return axes_.data(); }
    const std::int64_t* end() const { return axes_.data() + rank_; }

    /// Element count; 1 for rank 0. Throws Error unless the product of all axes > 0 fits 63 bits.
    std::int64_t elements() const;
    bool operator==(const Shape&) const = default;

  private:
    std::size_t index(int i) const {
        const int axis = i < 0 ? i + rank_ : i;
        check(axis >= 0 && axis < rank_, "shape: axis ", i, " of a rank-", rank_, " shape");
        return static_cast<std::size_t>(axis);
    }
    std::array<std::int64_t, max_rank> axes_{};
    int rank_ = 0;
};
using Strides = Shape;

/// n / divisor, rounded up: how many pieces of size `divisor` cover n >= 0.
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t divisor) {
    return (n + divisor - 1) / divisor;
}
constexpr std::int64_t rounded_up(std::int64_t n, std::int64_t multiple) {
    return ceil_div(n, multiple) * multiple;
}

/// Row-major strides for a shape.
Strides contiguous_strides(const Shape& shape);

/// Prints [2, 113, 4, 64].
std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace gradtile
