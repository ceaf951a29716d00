#include <algorithm>

#include <gradtile/layers/internal/column_sums_backend.h>

namespace gradtile::cpu {

void sum_columns(const Context& ctx, const Tensor& parts, const Tensor& x) {
    const std::int64_t rows = x.size(0), columns = x.size(1), row_stride = x.stride(0);
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        using Sum = Accumulator<T>;
        const T* values = x.data<T>();
        Sum* sums = parts.data<Sum>();
        parallel_ranges(ctx, rows, column_sum_rows, [&](std::int64_t begin, std::int64_t end) {
            Sum* __restrict part = sums + begin / column_sum_rows * columns;
            std::fill_n(part, columns, Sum(0));
            for (std::int64_t r = begin; r < end; ++r) {
                const T* __restrict row = values + r * row_stride;
                for (std::int64_t c = 0; c < columns; ++c) part[c] += convert<Sum>(row[c]);
            }
        });
    });
}

void add_parts(const Context& ctx, const GradientTarget& total, const Tensor& parts) {
    const std::int64_t columns = parts.size(1);
    const auto add = [&]<class Sum>(TypeTag<Sum>) {
        const Sum* sums = parts.data<Sum>();
        Sum* totals = total.grad.data<Sum>();
        parallel_ranges(ctx, columns, 1024, [&](std::int64_t begin, std::int64_t end) {
            if (!total.accumulates()) std::fill(totals + begin, totals + end, Sum(0));
            for (std::int64_t i = 0; i < parts.size(0); ++i) {
                const Sum* __restrict part = sums + i * columns;
                for (std::int64_t c = begin; c < end; ++c) totals[c] += part[c];
            }
        });
    };
    total.grad.dtype() == DType::f64 ? add(TypeTag<double>{}) : add(TypeTag<float>{});
}

}  // namespace gradtile::cpu
