#pragma once
/// What the two devices implement for linear.h beside matrix products.
#include <gradtile/core/tensor.h>

namespace gradtile::cpu {
/// sums[c] += sum over rows r of x[r, c]. x [rows, columns], rows may be strided; sums [columns] contiguous,
/// float32 (float64 for float64 x). `partial` [ceil(rows / column_sum_rows), columns] is scratch of sums'
/// dtype.
void add_column_sums(const Context& ctx, const Tensor& sums, const Tensor& x, const Tensor& partial);
}  // namespace gradtile::cpu
namespace gradtile::cuda {
void add_column_sums(const Context& ctx, const Tensor& sums, const Tensor& x, const Tensor& partial);
}  // namespace gradtile::cuda

namespace gradtile {
/// Rows summed by one block; the blocks' sums are then added in order.
inline constexpr std::int64_t column_sum_rows = 128;
}  // namespace gradtile
