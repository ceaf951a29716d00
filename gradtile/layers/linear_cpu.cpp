#include <algorithm>

#include <gradtile/layers/linear_backend.h>

namespace gradtile::cpu {

void add_column_sums(const Context& ctx, const Tensor& sums, const Tensor& x, const Tensor& partial) {
    const std::int64_t rows = x.size(0), columns = x.size(1), row_stride = x.stride(0);
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        using Sum = Accumulator<T>;
        const T* values = x.data<T>();
        Sum* partials = partial.data<Sum>();
        Sum* totals = sums.data<Sum>();
        parallel_ranges(ctx, rows, column_sum_rows, [&](std::int64_t begin, std::int64_t end) {
            Sum* __restrict block = partials + begin / column_sum_rows * columns;
            std::fill_n(block, columns, Sum(0));
            for (std::int64_t r = begin; r < end; ++r) {
                const T* __restrict row = values + r * row_stride;
                for (std::int64_t c = 0; c < columns; ++c) block[c] += convert<Sum>(row[c]);
            }
        });
        const std::int64_t blocks = partial.size(0);
        parallel_ranges(ctx, columns, 1024, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t block = 0; block < blocks; ++block) {
                const Sum* __restrict part = partials + block * columns;
                for (std::int64_t c = begin; c < end; ++c) totals[c] += part[c];
            }
        });
    });
}

}  // namespace gradtile::cpu
