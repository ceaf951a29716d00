#pragma once
/// INTERNAL. How much two kernels' results for the same call may differ: a check that needs no reference, for
/// `gradtile bench attention --tune`.
#include <gradtile/attention/attention.h>

namespace gradtile::attention {

/// Over any run of some hundred elements, the root mean square of a difference is at most `relative` times
/// the elements' root mean square, plus `absolute`.
struct ResultBound {
    double relative, absolute;
};

/// The bound for O or a gradient in a call whose inputs are standard normal numbers. `terms` is the number of
/// terms in its sums: keys or rows.
ResultBound result_bound(DType dtype, const Device& device, std::int64_t head_dim, std::int64_t terms);
/// The bound for the LSE.
ResultBound lse_bound(DType dtype, const Device& device, std::int64_t head_dim, std::int64_t keys);

/// The largest root mean square of a - b over a 4,096-element run, as a fraction of the bound; infinity if a
/// number is a NaN. a and b are on the CPU, contiguous, and have one shape and floating-point dtype.
double fraction_of_bound(const Context& cpu, const Tensor& a, const Tensor& b, const ResultBound& bound);

}  // namespace gradtile::attention
