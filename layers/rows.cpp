#include <gradtile/layers/rows.h>

namespace gradtile {

RowLayout row_layout(const Tensor& x, const char* op) {
    check(x.defined(), op, ": an operand is undefined; expected a tensor");
    check(x.rank() >= 1, op, ": ", x, " has no axes; expected at least one");
    RowLayout layout;
    layout.width = x.size(-1);
    layout.rows = 1;
    for (int axis = 0; axis < x.rank() - 1; ++axis) layout.rows *= x.size(axis);
    layout.inner_stride = layout.width;
    layout.inner = std::max<std::int64_t>(1, layout.rows);
    if (x.elements() == 0) return layout;
    check(x.stride(-1) == 1 || layout.width == 1, op, ": ", x, " with strides ", x.strides(),
          "; the last axis must be contiguous");

    // Merges axes from the last to the first. An axis joins the current group if its stride is the
    // group's stride times the group's length.
    int axis = x.rank() - 2;
    const auto take_group = [&](std::int64_t& count, std::int64_t& stride) {
        count = 1;
        stride = 0;
        for (; axis >= 0; --axis) {
            if (x.size(axis) == 1) continue;
            if (count == 1) {
                stride = x.stride(axis);
            } else if (x.stride(axis) != stride * count) {
                return;
            }
            count *= x.size(axis);
        }
    };
    std::int64_t outer = 1;
    take_group(layout.inner, layout.inner_stride);
    take_group(outer, layout.outer_stride);
    check(axis < 0, op, ": the leading axes of ", x, " with strides ", x.strides(),
          " cannot be merged into two groups of rows");
    return layout;
}

}  // namespace gradtile
