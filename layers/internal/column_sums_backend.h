#pragma once
/// What the two devices implement for column_sums.h. x [rows, columns], rows may be strided; parts
/// [.., columns] and total.grad [columns] contiguous, float32 (float64 for float64 x).
#include <gradtile/layers/column_sums.h>

namespace gradtile::cpu {
/// parts[i] = the sums of the i-th column_sum_rows rows of x.
void sum_columns(const Context& ctx, const Tensor& parts, const Tensor& x);
/// The sum of the parts, in their order, is a part of total.
void add_parts(const Context& ctx, const GradientTarget& total, const Tensor& parts);
}  // namespace gradtile::cpu
namespace gradtile::cuda {
void sum_columns(const Context& ctx, const Tensor& parts, const Tensor& x);
void add_parts(const Context& ctx, const GradientTarget& total, const Tensor& parts);
}  // namespace gradtile::cuda
