#pragma once
/// Tensor: a cheap strided view into a Buffer. Copying a Tensor copies the view, never the elements. Shapes
/// and strides have up to six axes. Strides are in elements; the default order is row-major.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/context.h>
#include <gradtile/core/dtype.h>

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

class Tensor {
  public:
    /// An undefined tensor: defined() is false.
    Tensor() = default;
    /// A view of memory that `buffer` keeps alive. If `buffer` is null, the caller keeps the memory alive.
    Tensor(std::shared_ptr<const Buffer> buffer, std::byte* data, Device device, DType dtype, Shape shape,
           Strides strides);
    /// A contiguous tensor over the caller's memory, which no tensor frees: shape.elements() elements with
    /// this dtype in row-major order, from `data` on, in `device` memory. Operators read and write this
    /// memory. It must stay valid until its last view is destroyed and, on CUDA, until the stream has done
    /// the enqueued work that uses it. Throws Error unless `data` is aligned for dtype, and when it is null
    /// and the shape has elements.
    static Tensor from_blob(void* data, const Shape& shape, DType dtype, Device device = Device::cpu());

    bool defined() const { return dtype_known_; }
    const Shape& shape() const { return shape_; }
    const Strides& strides() const { return strides_; }
    int rank() const { return shape_.rank(); }
    std::int64_t size(int axis) const { return shape_[axis]; }
    std::int64_t stride(int axis) const { return strides_[axis]; }
    std::int64_t elements() const { return shape_.elements(); }
    std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype_); }
    DType dtype() const { return dtype_; }
    Device device() const { return device_; }
    bool is_contiguous() const;

    /// A pointer to the first element. Throws Error unless T is the tensor's element type.
    template <class T>
    T* data() const {
        check(dtype_ == dtype_of<T>, "tensor: a ", dtype_, " tensor read as ", dtype_of<T>);
        return reinterpret_cast<T*>(data_);
    }
    std::byte* raw_data() const { return data_; }
    /// The memory that the tensor is a view of; null if the caller keeps it alive.
    const std::shared_ptr<const Buffer>& buffer() const { return buffer_; }

    // The next functions return views of the same elements. They throw Error on axes or ranges that do not
    // exist.

    /// Keeps only the range [begin, begin+length) along an axis.
    Tensor slice(int axis, std::int64_t begin, std::int64_t length) const;
    /// Keeps one index along an axis and removes the axis.
    Tensor select(int axis, std::int64_t index) const;
    Tensor transpose(int axis_a, int axis_b) const;
    /// Changes the shape; throws Error when the strides would require a copy. One axis length may be -1, and
    /// then follows from the others.
    Tensor reshape(Shape shape) const;
    /// Repeats length-1 axes, and missing leading axes, with stride 0.
    Tensor expand(Shape shape) const;

  private:
    std::shared_ptr<const Buffer> buffer_;
    std::byte* data_ = nullptr;
    Shape shape_;
    Strides strides_;
    Device device_ = Device::cpu();
    DType dtype_ = DType::f32;
    bool dtype_known_ = false;
};

// New tensors, with memory from ctx's allocator.
Tensor empty(const Context& ctx, const Shape& shape, DType dtype);
Tensor empty_like(const Context& ctx, const Tensor& x);
Tensor zeros(const Context& ctx, const Shape& shape, DType dtype);

/// Prints "[2, 113, 4, 64] float32 on cpu".
std::ostream& operator<<(std::ostream& out, const Tensor& x);

}  // namespace gradtile
