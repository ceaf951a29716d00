#pragma once
/// Random tensors: element i depends on (seed, i) alone, so every device, thread count and dtype draws the
/// same numbers (before rounding to the dtype).
#include <gradtile/core/tensor.h>

namespace gradtile {

struct Seed {
    std::uint64_t value = 0;
};

/// Standard normal (Box-Muller on Philox words, in float64), row-major element order.
Tensor randn(const Context& ctx, const Shape& shape, DType dtype, Seed seed);
/// Uniform on [0, 1).
Tensor rand(const Context& ctx, const Shape& shape, DType dtype, Seed seed);
/// x = mean + std * normal, in place; x contiguous.
void fill_normal(const Context& ctx, const Tensor& x, double mean, double std, Seed seed);

}  // namespace gradtile
