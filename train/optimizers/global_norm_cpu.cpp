#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <gradtile/train/optimizers/internal/global_norm_backend.h>

namespace gradtile::cpu {
namespace {

/// Sums squares in independent lanes: without -ffast-math, GCC does not vectorise a single running sum.
template <class T>
double squares_of_block(const T* __restrict x, std::int64_t n) {
    constexpr std::int64_t lanes = 32;
    std::array<double, lanes> sums{};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
            const double value = convert<double>(x[i + lane]);
            sums[static_cast<std::size_t>(lane)] += value * value;
        }
    double total = 0.0;
    for (; i < n; ++i) total += convert<double>(x[i]) * convert<double>(x[i]);
    for (const double sum : sums) total += sum;
    return total;
}

}  // namespace

void sum_of_squares(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& sum) {
    const std::int64_t n = x.elements(), blocks = partial.elements();
    double* sums = partial.data<double>();
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        const T* elements = x.data<T>();
        parallel_for(ctx, blocks, [&](std::int64_t block) {
            const std::int64_t begin = block * norm_block;
            sums[block] = squares_of_block(elements + begin, std::min(norm_block, n - begin));
        });
    });
    double total = 0.0;
    for (std::int64_t block = 0; block < blocks; ++block) total += sums[block];
    *sum.data<double>() = total;
}

void square_root(const Context&, const Tensor& x) {
    *x.data<double>() = std::sqrt(*x.data<double>());
}

void global_norm(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& norm) {
    sum_of_squares(ctx, x, partial, norm);
    square_root(ctx, norm);
}

void clip_scale(const Context&, const Tensor& norm, const Tensor& scale, const ClipOptions& options) {
    if (options.interruption.defined() && *options.interruption.data<double>() != 0.0)
        *norm.data<double>() = std::numeric_limits<double>::quiet_NaN();
    const double length = *norm.data<double>();
    double loss = 0.0;
    if (options.loss.defined())
        visit_floating(options.loss.dtype(),
                       [&]<class T>(TypeTag<T>) { loss = convert<double>(*options.loss.data<T>()); });
    const bool finite = std::isfinite(length) && std::isfinite(loss);
    const bool too_long = options.max_norm > 0.0 && length > options.max_norm;
    *scale.data<double>() = !finite ? 0.0 : too_long ? options.max_norm / length : 1.0;
}

}  // namespace gradtile::cpu
