#include <gradtile/core/tensor.h>

#include <algorithm>
#include <limits>
#include <ostream>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {

std::int64_t Shape::elements() const {
    // An empty axis counts as 1 here, so that contiguous_strides() cannot overflow after this check.
    std::int64_t product = 1;
    bool is_empty = false;
    for (const std::int64_t axis : *this) {
        check(axis >= 0, "shape ", *this, ": an axis is negative");
        check(!__builtin_mul_overflow(product, std::max<std::int64_t>(axis, 1), &product), "shape ", *this,
              ": more elements than 63 bits can count");
        is_empty = is_empty || axis == 0;
    }
    return is_empty ? 0 : product;
}

Strides contiguous_strides(const Shape& shape) {
    Strides strides = shape;
    std::int64_t step = 1;
    for (int i = shape.rank() - 1; i >= 0; --i) {
        strides[i] = step;
        step *= shape[i];
    }
    return strides;
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    out << '[';
    for (int i = 0; i < shape.rank(); ++i) out << (i ? ", " : "") << shape[i];
    return out << ']';
}

std::ostream& operator<<(std::ostream& out, const Tensor& x) {
    if (!x.defined()) return out << "no tensor";
    return out << x.shape() << ' ' << x.dtype() << " on " << x.device();
}

Tensor::Tensor(std::shared_ptr<const Buffer> buffer, std::byte* data, Device device, DType dtype, Shape shape,
               Strides strides)
    : buffer_(std::move(buffer)),
      data_(data),
      shape_(shape),
      strides_(strides),
      device_(device),
      dtype_(dtype),
      dtype_known_(true) {
    check(shape.rank() == strides.rank(), "tensor: shape ", shape, " with strides ", strides,
          "; ranks must be equal");
}

Tensor Tensor::from_blob(void* data, const Shape& shape, DType dtype, Device device) {
    const std::int64_t elements = shape.elements();  // throws on a shape that no tensor has
    check(data != nullptr || elements == 0, "from_blob: a null pointer for shape ", shape);
    check(reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) == 0, "from_blob: ", data,
          " is not aligned for ", dtype, " elements of ", size_of(dtype), " bytes");
    return Tensor(nullptr, static_cast<std::byte*>(data), device, dtype, shape, contiguous_strides(shape));
}

bool Tensor::is_contiguous() const {
    std::int64_t step = 1;
    for (int i = rank() - 1; i >= 0; --i) {
        if (shape_[i] != 1 && strides_[i] != step) return elements() == 0;
        step *= shape_[i];
    }
    return true;
}

Tensor Tensor::slice(int axis, std::int64_t begin, std::int64_t length) const {
    // begin + length may overflow, the difference cannot.
    check(begin >= 0 && length >= 0 && begin <= size(axis) && length <= size(axis) - begin,
          "tensor: slice of ", length, " from ", begin, " of axis ", axis, " of ", shape_,
          " is out of range");
    Tensor view = *this;
    view.shape_[axis] = length;
    view.data_ += begin * stride(axis) * static_cast<std::int64_t>(size_of(dtype_));
    return view;
}

Tensor Tensor::select(int axis, std::int64_t index) const {
    Tensor view = slice(axis, index, 1);
    const int dropped = axis < 0 ? axis + rank() : axis;
    std::vector<std::int64_t> shape, strides;
    for (int i = 0; i < rank(); ++i) {
        if (i == dropped) continue;
        shape.push_back(shape_[i]);
        strides.push_back(strides_[i]);
    }
    view.shape_ = Shape(std::span<const std::int64_t>(shape));
    view.strides_ = Strides(std::span<const std::int64_t>(strides));
    return view;
}

Tensor Tensor::transpose(int axis_a, int axis_b) const {
    Tensor view = *this;
    std::swap(view.shape_[axis_a], view.shape_[axis_b]);
    std::swap(view.strides_[axis_a], view.strides_[axis_b]);
    return view;
}

Tensor Tensor::reshape(Shape shape) const {
    std::int64_t known = 1;
    int open = -1;
    for (int i = 0; i < shape.rank(); ++i) {
        if (shape[i] == -1) {
            check(open < 0, "tensor: reshape to ", shape, ": more than one axis is -1");
            open = i;
        } else {
            known *= shape[i];
        }
    }
    if (open >= 0) shape[open] = known == 0 ? 0 : elements() / known;
    check(shape.elements() == elements(), "tensor: reshape of ", shape_, " to ", shape,
          "; numbers of elements must be equal");

    // Goes through both shapes from the last axis. Each new axis must lie inside a run: neighbouring old axes
    // with one common step.
    Tensor view = *this;
    view.shape_ = shape;
    view.strides_ = contiguous_strides(shape);
    if (elements() == 0 || is_contiguous()) return view;
    int old_axis = rank() - 1;
    std::int64_t
        run_left = 1,
        run_stride =
            1;  // run_left: elements in the current run that no new axis covers yet; run_stride: their step
    for (int i = shape.rank() - 1; i >= 0; --i) {
        if (shape[i] == 1) {
            view.strides_[i] = 1;
            continue;
        }
        while (run_left == 1) {  // begins a new run, the longest sequence of old axes with one common step
            check(old_axis >= 0, "tensor: reshape of ", shape_, " to ", shape);
            run_left = shape_[old_axis];
            run_stride = strides_[old_axis];
            --old_axis;
            while (old_axis >= 0 && (shape_[old_axis] == 1 || strides_[old_axis] == run_stride * run_left))
                run_left *= shape_[old_axis--];
        }
        check(run_left % shape[i] == 0, "tensor: reshape of ", shape_, " with strides ", strides_, " to ",
              shape, " would need a copy");
        view.strides_[i] = run_stride;
        run_stride *= shape[i];
        run_left /= shape[i];
    }
    return view;
}

Tensor Tensor::expand(Shape shape) const {
    check(shape.rank() >= rank(), "tensor: expand of ", shape_, " to ", shape,
          "; the result must not have fewer axes");
    shape.elements();  // throws Error for a negative axis
    Tensor view = *this;
    view.shape_ = shape;
    view.strides_ = shape;
    const int missing = shape.rank() - rank();
    for (int i = 0; i < shape.rank(); ++i) {
        const std::int64_t own = i < missing ? 1 : shape_[i - missing];
        check(own == shape[i] || own == 1, "tensor: expand of ", shape_, " to ", shape,
              "; only axes of length 1 can be expanded");
        view.strides_[i] = own == shape[i] && i >= missing ? strides_[i - missing] : 0;
    }
    return view;
}

Tensor empty(const Context& ctx, const Shape& shape, DType dtype) {
    const std::size_t size = size_of(dtype), bytes = static_cast<std::size_t>(shape.elements()) * size;
    check(bytes / size == static_cast<std::size_t>(shape.elements()) &&
              bytes <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()),
          "tensor: ", shape, ' ', dtype, " is larger than any memory");
    auto buffer = std::make_shared<Buffer>(ctx.allocator(), bytes);
    std::byte* data = buffer->data();
    return Tensor(std::move(buffer), data, ctx.device(), dtype, shape, contiguous_strides(shape));
}

Tensor empty_like(const Context& ctx, const Tensor& x) {
    check(x.defined(), "empty_like: an operand is undefined; expected a tensor");
    return empty(ctx, x.shape(), x.dtype());
}

Tensor zeros(const Context& ctx, const Shape& shape, DType dtype) {
    Tensor x = empty(ctx, shape, dtype);
    fill(ctx, x, 0.0);
    return x;
}

}  // namespace gradtile
