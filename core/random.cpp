#include <gradtile/core/random.h>

#include <array>
#include <cmath>
#include <numbers>

#include <gradtile/core/philox.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

constexpr std::int64_t piece = 4096;  // elements that a thread draws at once; even

/// 53 random bits as a double in [0, 1).
double unit(std::uint32_t high, std::uint32_t low) {
    return static_cast<double>((std::uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

/// One Philox call, with counter i, gives two numbers from a distribution: elements 2i and 2i+1. They are
/// drawn in pieces, so that a large tensor takes no further memory as float64.
template <class Pair>
Tensor draw_on_host(const Context& ctx, const Shape& shape, DType dtype, Seed seed, Pair&& pair) {
    if (ctx.is_planning()) return empty(ctx, shape, dtype);
    const Context host = ctx.device().is_cpu() ? ctx : host_of(ctx);
    const Tensor drawn = empty(host, shape, dtype);
    const Philox::Key key = philox_key(seed.value);
    const Tensor flat = drawn.reshape({shape.elements()});
    parallel_ranges(host, shape.elements(), piece, [&](std::int64_t begin, std::int64_t end) {
        std::array<double, piece> values;
        for (std::int64_t i = begin / 2; 2 * i < end; ++i) {
            const Philox::Counter words =
                Philox::draw({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, 0}, key);
            const auto [first, second] = pair(unit(words[0], words[1]), unit(words[2], words[3]));
            values[static_cast<std::size_t>(2 * i - begin)] = first;
            values[static_cast<std::size_t>(2 * i + 1 - begin)] = second;
        }
        copy(host, flat.slice(0, begin, end - begin),
             Tensor::from_blob(values.data(), {end - begin}, DType::f64));
    });
    return to_device(ctx, drawn);
}

std::pair<double, double> box_muller(double u, double v) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - u));  // 1 - u is exact, and in (0, 1]
    const double angle = 2.0 * std::numbers::pi * v;
    return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

Tensor randn(const Context& ctx, const Shape& shape, DType dtype, Seed seed) {
    return draw_on_host(ctx, shape, dtype, seed, box_muller);
}

Tensor rand(const Context& ctx, const Shape& shape, DType dtype, Seed seed) {
    return draw_on_host(ctx, shape, dtype, seed, [](double u, double v) { return std::pair(u, v); });
}

void fill_normal(const Context& ctx, const Tensor& x, double mean, double std, Seed seed) {
    check(x.defined(), "fill_normal: an operand is undefined; expected a tensor");
    copy(ctx, x, draw_on_host(ctx, x.shape(), x.dtype(), seed, [&](double u, double v) {
             const auto [first, second] = box_muller(u, v);
             return std::pair(mean + std * first, mean + std * second);
         }));
}

}  // namespace gradtile
