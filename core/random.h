#pragma once
/// Random tensors: element i depends on (seed, i) alone, so every device, thread count and dtype draws the
/// same numbers (before rounding to the dtype).
#include <gradtile/core/tensor.h>

namespace gradtile {

struct Seed {
    std::uint64_t value = 0;
};

/// Returns a tensor with standard normal numbers (Box-Muller on Philox words, in float64). An element's
/// number follows from the seed and the element's row-major index, and is then rounded to dtype.
Tensor randn(const Context& ctx, const Shape& shape, DType dtype, Seed seed);
/// Returns a tensor with uniform numbers in [0, 1).
Tensor rand(const Context& ctx, const Shape& shape, DType dtype, Seed seed);
/// Fills x with mean + std * (standard normal numbers); x is contiguous.
void fill_normal(const Context& ctx, const Tensor& x, double mean, double std, Seed seed);

}  // namespace gradtile
