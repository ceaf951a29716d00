#include <gradtile/core/tensor_math.h>

#include <gradtile/core/internal/tensor_math_backend.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

void check_operand(const Context& ctx, const char* what, const Tensor& x) {
    check(x.defined() && is_floating(x.dtype()), what, ": ", x, "; expected a floating-point tensor");
    check(x.device() == ctx.device(), what, ": ", x, " in a context of ", ctx.device(),
          "; devices must be equal");
}

Shape broadcast_shape(const char* what, const Tensor& a, const Tensor& b) {
    const Tensor& longer = a.rank() >= b.rank() ? a : b;
    const Tensor& shorter = a.rank() >= b.rank() ? b : a;
    Shape shape = longer.shape();
    for (int axis = -1; axis >= -shorter.rank(); --axis) {
        const std::int64_t size = shorter.size(axis);
        check(shape[axis] == size || shape[axis] == 1 || size == 1, what, ": ", a, " and ", b,
              " do not broadcast");
        if (size != 1) shape[axis] = size;
    }
    return shape;
}

Tensor combined(const Context& ctx, const char* what, const Tensor& a, const Tensor& b, Arithmetic op) {
    check_operand(ctx, what, a);
    check_operand(ctx, what, b);
    check(a.dtype() == b.dtype(), what, ": ", a, " and ", b, "; cast() one to the other's dtype");
    const Shape shape = broadcast_shape(what, a, b);
    Tensor y = empty(ctx, shape, a.dtype());
    on_device(ctx, cpu::combine, cuda::combine, y, a.expand(shape), b.expand(shape), op);
    return y;
}

Tensor applied(const Context& ctx, const char* what, const Tensor& x, MathFunction function) {
    check_operand(ctx, what, x);
    Tensor y = empty_like(ctx, x);
    on_device(ctx, cpu::apply, cuda::apply, y, x, function);
    return y;
}

Tensor contiguous(const Context& ctx, const Tensor& x) {
    return x.is_contiguous() ? x : cast(ctx, x, x.dtype());
}

/// Reduces contiguous rows [R, N] to [R].
Tensor reduced_rows(const Context& ctx, const Tensor& rows, Reduction reduction) {
    const DType dtype = reduction == Reduction::sum ? accumulator_of(rows.dtype()) : rows.dtype();
    Tensor y = empty(ctx, {rows.size(0)}, dtype);
    on_device(ctx, cpu::reduce_rows, cuda::reduce_rows, y, rows, reduction);
    return y;
}

Tensor reduced(const Context& ctx, const char* what, const Tensor& x, int axis, Reduction reduction) {
    check_operand(ctx, what, x);
    check(axis >= -x.rank() && axis < x.rank(), what, ": axis ", axis, " of ", x, "; there is none");
    const std::int64_t length = x.size(axis);
    check(reduction == Reduction::sum || length > 0, what, ": axis ", axis, " of ", x, " has no elements");
    Shape shape = x.shape();
    shape[axis] = 1;
    const Tensor rows = contiguous(ctx, x.transpose(axis, -1)).reshape({shape.elements(), length});
    // The transposition changed the order of the other axes.
    Shape transposed = shape;
    std::swap(transposed[axis], transposed[-1]);
    const Tensor y = reduced_rows(ctx, rows, reduction).reshape(transposed).transpose(axis, -1);
    return contiguous(ctx, y);
}

/// A whole tensor is reduced in two stages. The first stage reduces rows with this many elements.
constexpr std::int64_t whole_block = 1 << 14;

Tensor reduced(const Context& ctx, const char* what, const Tensor& x, Reduction reduction) {
    check_operand(ctx, what, x);
    Tensor flat = contiguous(ctx, x).reshape({x.elements()});
    while (flat.elements() > whole_block) {
        const std::int64_t block_count = flat.elements() / whole_block, rest = flat.elements() % whole_block;
        const Tensor blocks = flat.slice(0, 0, block_count * whole_block).reshape({block_count, whole_block});
        const Tensor parts = reduced_rows(ctx, blocks, reduction);
        if (rest == 0) {
            flat = parts;
            continue;
        }
        const Tensor last = flat.slice(0, block_count * whole_block, rest).reshape({1, rest});
        flat = empty(ctx, {block_count + 1}, parts.dtype());
        copy(ctx, flat.slice(0, 0, block_count), parts);
        copy(ctx, flat.slice(0, block_count, 1), reduced_rows(ctx, last, reduction));
    }
    return reduced_rows(ctx, flat.reshape({1, flat.elements()}), reduction).reshape({});
}

}  // namespace

Tensor add(const Context& ctx, const Tensor& a, const Tensor& b) {
    return combined(ctx, "add", a, b, Arithmetic::add);
}

Tensor subtract(const Context& ctx, const Tensor& a, const Tensor& b) {
    return combined(ctx, "subtract", a, b, Arithmetic::subtract);
}

Tensor multiply(const Context& ctx, const Tensor& a, const Tensor& b) {
    return combined(ctx, "multiply", a, b, Arithmetic::multiply);
}

Tensor divide(const Context& ctx, const Tensor& a, const Tensor& b) {
    return combined(ctx, "divide", a, b, Arithmetic::divide);
}

Tensor scale(const Context& ctx, const Tensor& x, double factor) {
    check_operand(ctx, "scale", x);
    Tensor y = empty_like(ctx, x);
    on_device(ctx, cpu::scale, cuda::scale, y, x, factor);
    return y;
}

Tensor exp(const Context& ctx, const Tensor& x) {
    return applied(ctx, "exp", x, MathFunction::exp);
}

Tensor log(const Context& ctx, const Tensor& x) {
    return applied(ctx, "log", x, MathFunction::log);
}

Tensor sum(const Context& ctx, const Tensor& x, int axis) {
    return reduced(ctx, "sum", x, axis, Reduction::sum);
}

Tensor mean(const Context& ctx, const Tensor& x, int axis) {
    const Tensor total = reduced(ctx, "mean", x, axis, Reduction::sum);
    check(x.size(axis) > 0, "mean: axis ", axis, " of ", x, " has no elements");
    return scale(ctx, total, 1.0 / static_cast<double>(x.size(axis)));
}

Tensor max(const Context& ctx, const Tensor& x, int axis) {
    return reduced(ctx, "max", x, axis, Reduction::max);
}

Tensor sum(const Context& ctx, const Tensor& x) {
    return reduced(ctx, "sum", x, Reduction::sum);
}

Tensor mean(const Context& ctx, const Tensor& x) {
    check(x.elements() > 0, "mean: ", x, " has no elements");
    return scale(ctx, reduced(ctx, "mean", x, Reduction::sum), 1.0 / static_cast<double>(x.elements()));
}

Tensor max(const Context& ctx, const Tensor& x) {
    check(x.elements() > 0, "max: ", x, " has no elements");
    return reduced(ctx, "max", x, Reduction::max);
}

}  // namespace gradtile
