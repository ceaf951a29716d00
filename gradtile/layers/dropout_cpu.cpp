#include <gradtile/layers/dropout_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

/// factors[c] = scale where column c is kept, 0 where it is dropped.
template <class Sum>
void draw_row(Sum* factors, std::int64_t width, const DropoutMask& mask, std::int64_t row) {
    const auto token = static_cast<std::uint32_t>(row % mask.tokens);
    const auto sample = static_cast<std::uint32_t>(mask.first_sample + row / mask.tokens);
    for (std::int64_t group = 0; group * 8 < width; ++group) {
        const Philox::Counter words =
            Philox::draw({static_cast<std::uint32_t>(group), token, 0, sample}, mask.key);
        for (std::int64_t c = group * 8; c < std::min(width, group * 8 + 8); ++c) {
            const std::uint32_t u = words[static_cast<std::size_t>(c % 8 / 2)] >> (16 * (c % 2)) & 0xffffu;
            factors[c] = u >= mask.threshold ? static_cast<Sum>(mask.scale) : Sum(0);
        }
    }
}

}  // namespace

void dropout(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& branch,
             const DropoutMask& mask) {
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        using Sum = Accumulator<T>;
        const Rows<T> ys(y, "dropout"), branches(branch, "dropout"), xs(x.defined() ? x : branch, "dropout");
        const std::int64_t width = ys.width();
        parallel_ranges(ctx, ys.count(), rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
            thread_local std::vector<Sum> factors;
            factors.assign(static_cast<std::size_t>(width), Sum(1));
            for (std::int64_t r = begin; r < end; ++r) {
                if (mask.threshold != 0) draw_row(factors.data(), width, mask, r);
                const T* b = branches[r];
                const T* residual = xs[r];
                T* out = ys[r];
                for (std::int64_t i = 0; i < width; ++i) {
                    Sum value = convert<Sum>(b[i]) * factors[static_cast<std::size_t>(i)];
                    if (x.defined()) value += convert<Sum>(residual[i]);
                    out[i] = convert<T>(value);
                }
            }
        });
    });
}

}  // namespace gradtile::cpu
