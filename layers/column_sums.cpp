#include <gradtile/layers/column_sums.h>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/internal/column_sums_backend.h>

namespace gradtile {

Tensor empty_column_sums(const Context& ctx, const Tensor& x) {
    check(x.rank() >= 1, "column_sums: x ", x, "; expected [.., C]");
    const std::int64_t columns = x.size(-1), rows = columns == 0 ? 0 : x.elements() / columns;
    return empty(ctx, {ceil_div(rows, column_sum_rows), columns}, accumulator_of(x.dtype()));
}

void add_column_sums(const Context& ctx, const GradientTarget& target, const SummedGradient& gradient) {
    const Tensor &total = target.grad, &dy = gradient.dy, &attached = gradient.column_sums;
    check(total.rank() == 1 && dy.rank() >= 1, "column_sums: dy ", dy, " and total ", total,
          "; expected [.., C] and [C]");
    const std::int64_t columns = total.size(0);
    check(dy.size(-1) == columns && total.dtype() == accumulator_of(dy.dtype()), "column_sums: dy ", dy,
          " and total ", total, "; expected one sum per column");
    check(!attached.defined() || (attached.rank() == 2 && attached.size(1) == columns &&
                                  attached.is_contiguous() && attached.dtype() == total.dtype()),
          "column_sums: partial sums ", attached, " do not fit total ", total);
    check_sharing(ctx, "column_sums", {"total", total}, {{"dy", dy}, {"partial sums", attached}});
    if (dy.elements() == 0) {
        ready_to_add(ctx, target);
        return;
    }
    check(dy.stride(-1) == 1 || columns == 1, "column_sums: rows of ", dy, " are not contiguous");
    Tensor parts = attached;
    if (!parts.defined()) {
        parts = empty_column_sums(ctx, dy);
        on_device(ctx, cpu::sum_columns, cuda::sum_columns, parts, dy.reshape({-1, columns}));
    }
    on_device(ctx, cpu::add_parts, cuda::add_parts, target, parts);
}

}  // namespace gradtile
