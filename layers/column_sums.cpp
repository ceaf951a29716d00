#include <gradtile/layers/column_sums.h>

#include <gradtile/layers/internal/column_sums_backend.h>

namespace gradtile {

Tensor room_for_column_sums(const Context& ctx, const Tensor& x) {
    const std::int64_t columns = x.size(-1), rows = columns == 0 ? 0 : x.elements() / columns;
    return empty(ctx, {ceil_div(rows, column_sum_rows), columns}, accumulator_of(x.dtype()));
}

void add_column_sums(const Context& ctx, const GradientTarget& target, const SummedGradient& gradient) {
    const Tensor &total = target.grad, &dy = gradient.dy, &made = gradient.column_sums;
    const std::int64_t columns = total.size(0);
    check(dy.size(-1) == columns && total.dtype() == accumulator_of(dy.dtype()), "column_sums: of ", dy,
          " into ", total);
    check(!made.defined() || (made.rank() == 2 && made.size(1) == columns && made.is_contiguous() &&
                              made.dtype() == total.dtype()),
          "column_sums: parts ", made, " for ", total);
    if (dy.elements() == 0) {
        ready_to_add(ctx, target);
        return;
    }
    check(dy.stride(-1) == 1 || columns == 1, "column_sums: rows of ", dy, " are not contiguous");
    Tensor parts = made;
    if (!parts.defined()) {
        parts = room_for_column_sums(ctx, dy);
        on_device(ctx, cpu::sum_columns, cuda::sum_columns, parts, dy.reshape({-1, columns}));
    }
    on_device(ctx, cpu::add_parts, cuda::add_parts, target, parts);
}

}  // namespace gradtile
